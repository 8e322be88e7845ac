"""What the kills from outside did, put together from what the worker, the ranks and the next attempt wrote down."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.contract.paths import RunPaths
from trainer.kinds.resume.params import KILLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One SIGKILL that hit live ranks, and where the training went on."""

    attempt: int
    """The attempt it ended."""
    step: int
    """Updates the ranks had done."""
    phase: str
    """What they were in; `rank 0 / rank 1 / …` when they were in different phases."""
    checkpoint_step: int | None
    """Where the next attempt went on, 0 at the beginning; None when there was none."""

    @property
    def steps_repeated(self) -> int | None:
        """Updates done twice because of this kill."""
        return None if self.checkpoint_step is None else self.step - self.checkpoint_step

    def summary(self) -> dict[str, Any]:
        """Return the entry of `summary.kills`."""
        return {
            "step": self.step,
            "phase": self.phase,
            "checkpoint_step": self.checkpoint_step,
            "steps_repeated": self.steps_repeated,
        }


def read_kills(paths: RunPaths) -> list[Kill]:
    """Return the kills that counted, in order; none when nobody killed (the file is then missing)."""
    file = paths.stage(KILLED) / "kills.json"
    if not file.exists():
        return []
    return [_kill(paths, entry) for entry in json.loads(file.read_text()) if entry["hit"]]


def _kill(paths: RunPaths, entry: Mapping[str, Any]) -> Kill:
    crumbs = {int(rank): crumb for rank, crumb in entry["crumbs"].items() if crumb is not None}
    phases = [str(crumbs[rank]["phase"]) for rank in sorted(crumbs)]
    attempt = int(entry["attempt"])
    next_step = _first_step(paths.attempt(KILLED, attempt + 1).events(0))
    # A breadcrumb begins at 0: a rank killed before it had loaded its checkpoint had done the checkpoint's updates.
    done = [int(crumb["step"]) for crumb in crumbs.values()]
    return Kill(
        attempt=attempt,
        step=max([*done, next_step or 0]),
        phase=phases[0] if len(set(phases)) == 1 else " / ".join(phases),
        checkpoint_step=next_step,
    )


def _first_step(events: Path) -> int | None:
    """Return the updates done when an attempt began to train, None when it never did."""
    if not events.exists():
        return None
    for line in events.read_bytes().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the torn tail of a killed attempt
        if event.get("type") == "phase" and event.get("phase") == "train":
            return int(event["step"])
    return None
