"""The effect of planned kills, from the records of the worker, the ranks and the next attempt."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.contract.kills import Kill, load_kills
from trainer.contract.paths import RunPaths
from trainer.kinds.resume.params import KILLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One kill that hit live ranks, and where the training continued."""

    attempt: int
    """The attempt it ended."""
    step: int
    """Updates the ranks had finished."""
    phase: str
    """Their phase; `rank 0 / rank 1 / …` if they were in different phases."""
    checkpoint_step: int | None
    """Update at which the next attempt continued, 0 for the beginning; None if there was no next attempt."""

    @property
    def steps_repeated(self) -> int | None:
        """Updates repeated because of this kill."""
        return None if self.checkpoint_step is None else self.step - self.checkpoint_step

    def summary(self) -> dict[str, Any]:
        """Return the entry of `summary.kills`."""
        return {
            "step": self.step,
            "phase": self.phase,
            "checkpoint_step": self.checkpoint_step,
            "steps_repeated": self.steps_repeated,
        }


def read_recoveries(paths: RunPaths) -> list[Recovery]:
    """Return what followed each kill that counted, in order; empty if there were none.

    Raises pydantic.ValidationError for an invalid list of kills.
    """
    return [_recovery(paths, kill) for kill in load_kills(paths.kills(KILLED)) if kill.hit]


def _recovery(paths: RunPaths, kill: Kill) -> Recovery:
    crumbs = [kill.crumbs[rank] for rank in sorted(kill.crumbs, key=int)]
    phases = [crumb.phase for crumb in crumbs]
    next_step = _first_step(paths.attempt(KILLED, kill.attempt + 1).events(0))
    # A breadcrumb starts at 0: a rank killed before it had loaded its checkpoint still had the checkpoint's updates.
    return Recovery(
        attempt=kill.attempt,
        step=max([*(crumb.step for crumb in crumbs), next_step or 0]),
        phase=phases[0] if len(set(phases)) == 1 else " / ".join(phases),
        checkpoint_step=next_step,
    )


def _first_step(events: Path) -> int | None:
    """Return the finished updates when an attempt began to train, None if it never did."""
    if not events.exists():
        return None
    for line in events.read_bytes().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the incomplete last line of a killed attempt
        if event.get("type") == "phase" and event.get("phase") == "train":
            return int(event["step"])
    return None
