"""Kills on purpose: SIGKILL to all ranks at drawn moments of a stage's training, to be survived by its next attempt."""

import json
import random
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from trainer.contract.crumb import read_crumb
from trainer.contract.files import write_json_atomically
from trainer.contract.kinds import KillPlan
from trainer.contract.manifest import newest_valid
from trainer.contract.paths import AttemptPaths, RunPaths
from worker import processes
from worker.facts import read_json, tail_of
from worker.processes import MARKER, Identity

LATEST_SHARE: Final = 0.95
"""Of the training: a kill drawn later would often come after the end and hit nobody."""
WAIT_FOR_CRUMBS_SECONDS: Final = 0.05


@dataclass(slots=True, kw_only=True)
class Kill:
    """One kill, as `kills.json` lists it."""

    attempt: int
    ranks: list[int]
    at: float
    """Unix seconds."""
    hit: bool
    """Whether a rank was alive to receive it; only then it counts."""
    crumbs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """rank -> phase and step it was killed in."""


def kills_path(run: RunPaths, stage: str) -> Path:
    """Return where the kills of a stage are listed."""
    return run.stage(stage) / "kills.json"


def load_kills(path: Path) -> list[Kill]:
    """Return the kills made so far."""
    try:
        return [Kill(**entry) for entry in json.loads(path.read_text())]
    except FileNotFoundError:
        return []


def draw_moments(plan: KillPlan, duration: float) -> list[float]:
    """Return `count` moments, uniform over the training phase of `duration` seconds, in order."""
    draw = random.Random(plan.seed)  # repeatable, not secret
    return sorted(draw.uniform(0.0, LATEST_SHARE * duration) for _ in range(plan.count))


def training_span(paths: AttemptPaths, ranks: int) -> tuple[float | None, float | None]:
    """Return (time of the last rank's `start`, time of the first rank's `end`), None where not every rank has one."""
    starts, ends = [], []
    for rank in range(ranks):
        first, last = _first_event(paths.events(rank)), _last_event(paths.events(rank))
        starts += [first["t"]] if first.get("type") == "start" else []
        ends += [last["t"]] if last.get("type") == "end" else []
    return (max(starts) if len(starts) == ranks else None, min(ends) if len(ends) == ranks else None)


def _first_event(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as handle:
            line = handle.readline(1 << 20)
    except FileNotFoundError:
        return {}
    return _event(line)


def _last_event(path: Path) -> dict[str, Any]:
    lines = tail_of(path).splitlines()
    return _event(lines[-1]) if lines else {}


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


class Killer:
    """The kills of one attempt of a stage."""

    def __init__(self, run: RunPaths, stage: str, attempt: int, *, ranks: int, plan: KillPlan, duration: float) -> None:
        self._run, self._stage, self._attempt, self._ranks = run, stage, attempt, ranks
        self._path = kills_path(run, stage)
        self._paths = run.attempt(stage, attempt)
        self._moments, self._duration = draw_moments(plan, duration), duration
        self._due: float | None = None

    @property
    def killed(self) -> bool:
        """Whether this attempt was killed on purpose."""
        return any(kill.attempt == self._attempt and kill.hit for kill in load_kills(self._path))

    @property
    def pending(self) -> bool:
        """Whether a kill is still to be made in this attempt."""
        kills = load_kills(self._path)
        return len(kills) < len(self._moments) and all(kill.attempt != self._attempt for kill in kills)

    def due(self) -> float | None:
        """Return the unix time of this attempt's kill; None while a rank has not started or when there is none.

        The moments lie on the axis of useful work. An attempt begins at its checkpoint, so its kill comes after the
        rest of the way to the moment.
        """
        if self._due is None and self.pending:
            started, _ = training_span(self._paths, self._ranks)
            if started is not None:
                position = self._duration * self._resumed_share()
                moment = self._moments[len(load_kills(self._path))]
                self._due = started + max(0.0, moment - position)
        return self._due

    def _resumed_share(self) -> float:
        checkpoint, _ = newest_valid(self._run.checkpoints(self._stage))
        total = self._total_updates()
        if self._attempt == 1 or checkpoint is None or total is None:
            return 0.0
        return min(1.0, checkpoint.step / total)

    def _total_updates(self) -> float | None:
        for attempt in range(self._attempt, 0, -1):
            for line in reversed(tail_of(self._run.attempt(self._stage, attempt).events(0)).splitlines()):
                event = _event(line)
                if event.get("type") == "progress" and event.get("total"):
                    return float(event["total"])
        return None

    def tick(self, marker: str) -> bool:
        """Kill if the moment has come, and return whether a rank was hit."""
        due = self.due()
        if due is None or time.time() < due:
            return False
        self._due = None
        return self._kill(marker)

    def _kill(self, marker: str) -> bool:
        victims = rank_processes(marker)
        kills = load_kills(self._path)
        kill = Kill(attempt=self._attempt, ranks=sorted(victims), at=time.time(), hit=False)
        # Written before the deed: a worker that dies in between must not mistake the kill for a failure.
        self._save([*kills, kill])
        kill.at = time.time()
        kill.hit = processes.kill_all(victims.values()) > 0
        time.sleep(WAIT_FOR_CRUMBS_SECONDS)
        kill.crumbs = self._crumbs()
        self._save([*kills, kill])
        return kill.hit

    def _crumbs(self) -> dict[str, dict[str, Any]]:
        found = {}
        for rank in range(self._ranks):
            crumb = read_crumb(self._paths.breadcrumb(rank))
            if crumb is not None:
                found[str(rank)] = {"phase": crumb.phase, "step": crumb.step}
        return found

    def confirm(self, signalled: Mapping[int, int | None]) -> None:
        """Complete the entry of a kill whose maker did not live to do it; `signalled` maps rank to its signal."""
        kills = load_kills(self._path)
        for kill in kills:
            if kill.attempt == self._attempt and not kill.crumbs:
                kill.hit = any(signalled.get(rank) == 9 for rank in kill.ranks)
                kill.crumbs = self._crumbs()
                self._save(kills)

    def _save(self, kills: list[Kill]) -> None:
        write_json_atomically(self._path, [asdict(kill) for kill in kills])


def rank_processes(marker: str) -> dict[int, Identity]:
    """Return the living rank processes of an attempt: children of the launcher, not their helpers."""
    found: dict[int, Identity] = {}
    for process in processes.marked(marker):
        environment = processes.environment_of(process.pid)
        if environment.get(MARKER) == marker and "RANK" in environment and "TORCHELASTIC_RUN_ID" in environment:
            parent = process.stat()
            launched = parent is not None and "RANK" not in processes.environment_of(parent.parent)
            if launched:
                found[int(environment["RANK"])] = process
    return found


def training_seconds(run: RunPaths, stage: str, ranks: int) -> float:
    """Return how long the training of a finished stage took, from its newest attempt.

    Where its events do not tell, the time of the whole attempt stands in. Raises FileNotFoundError if it never ended.
    """
    attempts = sorted(run.stage(stage).glob("attempt_*"), key=lambda path: int(path.name.removeprefix("attempt_")))
    report = read_json(AttemptPaths(attempts[-1]).exit) if attempts else {}
    if not report:
        raise FileNotFoundError(f"stage {stage} has not ended; its duration bounds the kills")
    started, ended = training_span(AttemptPaths(attempts[-1]), ranks)
    if started is None or ended is None:
        started, ended = float(report["started_at"]), float(report["finished_at"])
    return max(0.0, ended - started)
