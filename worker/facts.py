"""Facts about an ended attempt, collected from its files: exit.json, events, breadcrumbs, logs, checkpoints."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from app.runs.states import Reason
from trainer.contract.checkpoints import newest_of_run
from trainer.contract.crumb import read_crumb
from trainer.contract.kinds import kinds
from trainer.contract.paths import AttemptPaths, RunPaths
from worker.executors.base import Fate
from worker.tail import RANK_FILE

TAIL_BYTES: Final = 262_144
LONGEST_LINE: Final = 2000
"""Maximum number of characters of a last line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How one rank ended, and its last position."""

    rank: int
    pid: int | None = None
    local_rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    died_at: float | None = None
    finished: bool = False
    """It reported that its work was done."""
    phase: str = ""
    step: int | None = None
    collective: int = 0
    """Number of collectives entered."""
    inside: bool = False
    """Whether it was inside a collective."""
    error: str = ""
    """Class of the exception that ended it."""
    error_at: float | None = None
    last_line: str = ""
    progress: tuple[float, float | None, str] | None = None
    """done, total, unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything the outcome of an attempt depends on."""

    stage: str
    launcher: str = "torchrun"
    ranks: tuple[RankEnd, ...] = ()
    expected: int = 1
    main_pid: int | None = None
    main_exit_code: int | None = None
    main_signal: int | None = None
    main_ended_at: float | None = None
    main_last_line: str = ""
    launch_error: str | None = None
    why: str = ""
    """Why a scheduler ended it, as a sentence."""
    lost_node: str = ""
    first: int | None = None
    """Rank that ended first according to the supervisor."""
    killed_at: float | None = None
    """When the supervisor began to kill."""
    asked: bool = False
    """Whether the supervisor was asked to end the attempt."""
    processes_ended: int = 0
    processes_left: int = 0
    oom_kills: int = 0
    checkpoint: str | None = None
    """Newest complete checkpoint, relative to the run's folder."""
    fate: Fate = Fate.REPORTED
    nodes: Mapping[int, str] = field(default_factory=dict)
    """Rank -> machine it ran on, as reported by the rank."""
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    """The kind's mapping of its own exceptions to reasons, by class name."""
    stop_reason: Reason | None = None
    cancelled: bool = False
    noted: Mapping[str, Any] = field(default_factory=dict)
    """`failure` and `diagnosis` recorded when the stop was decided."""

    def with_stop(self, *, cancelled: bool, stop_reason: Reason | None, noted: Mapping[str, Any]) -> "Facts":
        """Return the facts with the run's stop request added."""
        return replace(self, cancelled=cancelled, stop_reason=stop_reason, noted=noted)


def gather(run: RunPaths, stage: str, attempt: int, *, launcher: str, expected: int, **known: Any) -> Facts:
    """Return the facts of an attempt that has ended; `known` are additional fields of `Facts`."""
    paths = run.attempt(stage, attempt)
    report = read_json(paths.exit)
    main, stop = report.get("main", {}), report.get("stop", {})
    if not report:
        known.setdefault("fate", Fate.LOST)
    return Facts(
        stage=stage,
        launcher=launcher,
        expected=expected,
        ranks=tuple(_rank_end(paths, rank, seen) for rank, seen in sorted(_seen_ranks(paths, report).items())),
        main_pid=main.get("pid"),
        main_exit_code=main.get("exit_code"),
        main_signal=main.get("signal"),
        main_ended_at=main.get("ended_at"),
        main_last_line=last_line(paths.shim_log if launcher != "command" else paths.log(0, "stderr")),
        launch_error=known.pop("launch_error", None) or report.get("launch_error"),
        first=(report.get("first") or {}).get("rank"),
        killed_at=stop.get("killed_at"),
        asked=bool(stop.get("asked")),
        processes_ended=int(stop.get("processes_ended", 0)) + int(known.pop("orphans_ended", 0)),
        processes_left=int(stop.get("processes_left", 0)),
        oom_kills=int(report.get("oom_kills", 0)),
        checkpoint=newest_checkpoint(run, stage),
        reasons=kind_reasons(run),
        **known,
    )


def kind_reasons(run: RunPaths) -> dict[str, Reason]:
    """Return the failure reasons of the run's kind; none if its configuration or the kind is gone."""
    kind = kinds().get(str(read_json(run.config).get("kind")))
    return {} if kind is None else {name: Reason(word) for name, word in kind.reasons.items()}


def newest_checkpoint(run: RunPaths, stage: str) -> str | None:
    """Return the complete checkpoint, relative to the run's folder, that a retry with resume would continue from."""
    found, _ = newest_of_run(run.root, stage)
    return None if found is None else str(found.path.relative_to(run.root))


def read_json(path: Path) -> dict[str, Any]:
    """Return the document in a file, empty if it cannot be read."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def last_line(path: Path) -> str:
    """Return the last non-blank line of a log, shortened; empty if there is none."""
    lines = (line.strip() for line in reversed(tail_of(path).decode(errors="replace").splitlines()))
    return next((line for line in lines if line), "")[:LONGEST_LINE]


def tail_of(path: Path) -> bytes:
    """Return the end of a file, at most `TAIL_BYTES`."""
    try:
        with path.open("rb") as handle:
            handle.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return handle.read()
    except OSError:
        return b""


def _seen_ranks(paths: AttemptPaths, report: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    seen: dict[int, Mapping[str, Any]] = {}
    if paths.root.is_dir():
        matches = (RANK_FILE.match(path.name) for path in paths.root.iterdir())
        seen = {int(match.group(1)): {} for match in matches if match}
    return seen | {int(entry["rank"]): entry for entry in report.get("ranks", [])}


def _rank_end(paths: AttemptPaths, rank: int, seen: Mapping[str, Any]) -> RankEnd:
    crumb = read_crumb(paths.breadcrumb(rank))
    events = _newest_events(paths.events(rank))
    error, progress = events.get("error", {}), events.get("progress")
    report = read_json(paths.error(rank))
    phase = error.get("phase") or (crumb.phase if crumb else "")
    line = report.get("last_line") or seen.get("error") or last_line(paths.log(rank, "stderr"))
    return RankEnd(
        rank=rank,
        pid=seen.get("pid") or (crumb.pid if crumb else None),
        local_rank=seen.get("local_rank"),
        exit_code=seen.get("exit_code"),
        signal=seen.get("signal"),
        died_at=seen.get("died_at"),
        finished=crumb is not None and crumb.phase == "end",
        phase=str(phase),
        step=error.get("step", crumb.step if crumb else None),
        collective=crumb.collective if crumb else 0,
        inside=bool(crumb and crumb.inside),
        error=str(report.get("error") or error.get("error") or ""),
        error_at=error.get("t"),
        last_line=str(line or last_line(paths.log(rank, "stdout")))[:LONGEST_LINE],
        progress=(progress["done"], progress["total"], progress["unit"]) if progress else None,
    )


def _newest_events(path: Path) -> dict[str, dict[str, Any]]:
    """Return the newest event of each type in the tail of a rank's file."""
    newest: dict[str, dict[str, Any]] = {}
    for line in tail_of(path).splitlines():
        try:
            event = json.loads(line)
            newest[event["type"]] = event
        except (ValueError, KeyError, TypeError):
            continue  # the intake stores it as malformed
    return newest
