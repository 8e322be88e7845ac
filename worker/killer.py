"""Planned kills: SIGKILL to all ranks at random times of a stage's training; the next attempt must continue it."""

import json
import random
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainer.contract.crumb import read_crumb
from trainer.contract.kills import Kill, Whereabouts, load_kills, save_kills
from trainer.contract.kinds import KillPlan
from trainer.contract.paths import AttemptPaths, RunPaths
from worker.executors.base import Handle
from worker.facts import read_json, tail_of

LATEST_SHARE: Final = 0.95
"""Share of the training: a later kill would often come after the end and hit no rank."""
HEAD_BYTES: Final = 65_536
"""Bytes read at the beginning of a rank file, which contain its start and first step."""
WAIT_FOR_CRUMBS_SECONDS: Final = 0.05


def draw_moments(plan: KillPlan, duration: float) -> list[float]:
    """Return `count` times, uniform over the training phase of `duration` seconds, sorted."""
    draw = random.Random(f"kill moments {plan.seed}")  # a separate generator: repeatable, not secret
    return sorted(draw.uniform(0.0, LATEST_SHARE * duration) for _ in range(plan.count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """When an attempt trained, in unix seconds; None if not every rank has got that far."""

    started: float | None
    """Last rank's `start`."""
    training: float | None
    """Last rank's first step: its phase `train`, or its first progress."""
    ended: float | None
    """First rank's `end`."""


def span_of(paths: AttemptPaths, ranks: int) -> Span:
    """Read the span from the first and last lines of the rank files."""
    found = [_rank_span(paths.events(rank)) for rank in range(ranks)]

    def all_of(index: int) -> list[float]:
        times = [times[index] for times in found]
        known = [time for time in times if time is not None]
        return known if len(known) == ranks else []

    return Span(
        started=max(all_of(0), default=None), training=max(all_of(1), default=None), ended=min(all_of(2), default=None)
    )


def _rank_span(path: Path) -> tuple[float | None, float | None, float | None]:
    try:
        with path.open("rb") as handle:
            head = [_event(line) for line in handle.read(HEAD_BYTES).splitlines()]
    except FileNotFoundError:
        return None, None, None
    start = next((event["t"] for event in head if event.get("type") == "start"), None)
    training = next((event["t"] for event in head if _is_training(event)), None)
    last = _event((tail_of(path).splitlines() or [b""])[-1])
    return start, training, last["t"] if last.get("type") == "end" else None


def _is_training(event: dict[str, Any]) -> bool:
    return event.get("type") == "progress" or (event.get("type") == "phase" and event.get("phase") == "train")


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How long an uninterrupted training took, in seconds."""

    setting_up: float
    """From the last rank's `start` to the first step."""
    working: float
    """From there to the first rank's `end`."""
    updates: float | None = None
    """Total updates; None if it reported no progress."""

    @property
    def duration(self) -> float:
        """The whole training phase."""
        return self.setting_up + self.working

    def position(self, updates: float) -> float:
        """Return the time on the course at which that many updates are done."""
        share = min(1.0, updates / self.updates) if self.updates else 0.0
        return self.setting_up + share * self.working


def course_of(run: RunPaths, stage: str, ranks: int) -> Course:
    """Return the course of a finished stage, from its newest attempt.

    If its events do not show it, the duration of the whole attempt is used. Raises FileNotFoundError if it never ended.
    """
    attempts = sorted(run.stage(stage).glob("attempt_*"), key=lambda path: int(path.name.removeprefix("attempt_")))
    report = read_json(AttemptPaths(attempts[-1]).exit) if attempts else {}
    if not report:
        raise FileNotFoundError(f"stage {stage} has not ended; its duration limits the times of the kills")
    span = span_of(AttemptPaths(attempts[-1]), ranks)
    if span.started is None or span.ended is None:
        return Course(setting_up=0.0, working=float(report["finished_at"]) - float(report["started_at"]))
    training = span.started if span.training is None else max(span.started, min(span.training, span.ended))
    progress = _newest_progress(AttemptPaths(attempts[-1]).events(0))
    updates = float(progress["total"]) if progress else None
    return Course(setting_up=training - span.started, working=max(0.0, span.ended - training), updates=updates)


def _newest_progress(path: Path) -> dict[str, Any]:
    for line in reversed(tail_of(path).splitlines()):
        event = _event(line)
        if event.get("type") == "progress" and event.get("total"):
            return event
    return {}


class Killer:
    """The kills of one attempt of a stage."""

    def __init__(self, run: RunPaths, stage: str, attempt: int, *, ranks: int, plan: KillPlan, course: Course) -> None:
        self._run, self._stage, self._attempt, self._ranks = run, stage, attempt, ranks
        self._path = run.kills(stage)
        self._paths = run.attempt(stage, attempt)
        self._moments, self._course = draw_moments(plan, course.duration), course
        self._due: float | None = None

    @property
    def killed(self) -> bool:
        """Whether this attempt was killed as planned."""
        return any(kill.attempt == self._attempt and kill.hit for kill in load_kills(self._path))

    @property
    def pending(self) -> bool:
        """Whether a kill is still planned for this attempt."""
        kills = load_kills(self._path)
        return len(kills) < len(self._moments) and all(kill.attempt != self._attempt for kill in kills)

    def due(self) -> float | None:
        """Return the unix time of this attempt's kill; None if it is not known yet or none is planned.

        The times refer to the course of the uninterrupted training. The first attempt sets up as that one did, though
        not in the same time: a kill meant for its training counts from its first step. A later attempt starts at its
        checkpoint, so its kill comes after the remaining time up to that point.
        """
        if not self.pending:
            return None
        if self._due is None:
            self._due = self._draw()
        # Faster than the uninterrupted one: better a little early than never.
        return time.time() if self._due is not None and self._progress() >= LATEST_SHARE else self._due

    def _draw(self) -> float | None:
        moment = self._moments[len(load_kills(self._path))]
        span = span_of(self._paths, self._ranks)
        if self._attempt == 1 and moment < self._course.setting_up:
            return None if span.started is None else span.started + moment
        if span.started is None or span.training is None:
            return None
        return span.training + max(0.0, moment - self._course.position(self._resumed_at()))

    def _resumed_at(self) -> float:
        """Return the number of updates the attempt started with."""
        with self._paths.events(0).open("rb") as handle:
            events = (_event(line) for line in handle.read(HEAD_BYTES).splitlines())
            first = next((event for event in events if _is_training(event)), {})
        return float(first.get("step") or first.get("done") or 0)

    def _progress(self) -> float:
        progress = _newest_progress(self._paths.events(0))
        return float(progress["done"]) / float(progress["total"]) if progress else 0.0

    def tick(self, handle: Handle) -> bool:
        """Kill if it is time, and return whether a rank was hit."""
        due = self.due()
        if due is None or time.time() < due:
            return False
        self._due = None
        return self._kill(handle)

    def _kill(self, handle: Handle) -> bool:
        victims = [rank for rank, process in handle.ranks().items() if process.alive]
        kills = load_kills(self._path)
        kill = Kill(attempt=self._attempt, ranks=sorted(victims), at=time.time(), hit=False)
        # Written before the kill: if the worker dies in between, its successor must not mistake the kill for a failure.
        save_kills(self._path, [*kills, kill])
        kill.at = time.time()
        kill.hit = handle.kill_ranks() > 0
        time.sleep(WAIT_FOR_CRUMBS_SECONDS)
        kill.crumbs = self._crumbs()
        save_kills(self._path, [*kills, kill])
        return kill.hit

    def _crumbs(self) -> dict[str, Whereabouts]:
        found = {}
        for rank in range(self._ranks):
            crumb = read_crumb(self._paths.breadcrumb(rank))
            if crumb is not None:
                found[str(rank)] = Whereabouts(phase=crumb.phase, step=crumb.step)
        return found

    def confirm(self, signalled: Mapping[int, int | None]) -> None:
        """Complete the entry of a kill from how the ranks ended; `signalled` maps rank to its signal."""
        kills = load_kills(self._path)
        for kill in kills:
            # A kill on another node arrives a moment later: only the end of the ranks shows whether and where it hit.
            if kill.attempt == self._attempt:
                kill.hit = any(signalled.get(rank) == signal.SIGKILL for rank in kill.ranks)
                kill.crumbs = self._crumbs()
                save_kills(self._path, kills)
