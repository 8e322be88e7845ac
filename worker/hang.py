"""Detects silent ranks: flags them, requests their stacks, and names the rank that blocks the others."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from app.runs.states import Reason
from app.settings import Settings
from trainer.contract.crumb import read_crumb
from trainer.contract.paths import AttemptPaths
from worker.executors.base import Handle, RankProcess
from worker.lines import Heard
from worker.outcome import failure_document

ANSWER_SECONDS: Final = 1.5
"""Seconds a rank gets to write its stacks."""
GAP_SECONDS: Final = 10.0
"""Maximum time between two checks; after a longer gap, silence is counted from zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Position of one rank while no rank makes progress."""

    rank: int
    silent: float
    """Seconds since its latest event."""
    stopped: bool
    """Suspended by a signal or a debugger."""
    collective: int
    inside: bool
    operation: str
    phase: str
    step: int | None
    has_stack: bool = False
    node: str = ""
    """Its machine, if the ranks are on several."""

    def text(self) -> str:
        """Describe the position."""
        step = "" if self.step is None else f", step {self.step}"
        where = "before its first collective"
        if self.collective:
            where = f"{'inside' if self.inside else 'past'} collective {self.collective} ({self.operation})"
        stopped = ", stopped by a signal" if self.stopped else ""
        stack = "" if self.has_stack else ", no stack (it cannot respond)"
        place = f"phase {self.phase or 'start'}{step}, {where}"
        node = f" on {self.node}" if self.node else ""
        return f"rank {self.rank}{node}: {place}, silent for {self.silent:.0f} s{stopped}{stack}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why a run has to be ended."""

    reason: Reason
    failure: dict[str, Any]
    diagnosis: str


def odd_ranks(positions: Sequence[Position]) -> tuple[list[int], str]:
    """Return the ranks that keep the others waiting, the furthest behind first, and the evidence.

    A stopped rank explains everything. Else it is the rank that is not inside the newest collective; if no rank is
    inside it or behind it, the rank that has been silent for the longest time; if all are inside it, the rank inside a
    different operation than most. None if there is no majority, or if all are inside the same one: then their
    connection is stuck.
    """
    stopped = [position.rank for position in positions if position.stopped]
    if stopped:
        return stopped, "it is stopped (by SIGSTOP or a debugger) and cannot continue"
    newest = max(position.collective for position in positions)
    behind = [p for p in positions if p.collective < newest or not p.inside]
    if len(behind) == len(positions):
        behind = [p for p in behind if p.collective < newest]
        if not behind:
            longest = max(positions, key=lambda p: p.silent)
            return [longest.rank], "no rank waits in a collective, and this one has been silent for the longest time"
    if behind:
        behind.sort(key=lambda p: (p.collective, p.step or 0))
        waited = any(p.inside and p.collective == newest for p in positions)
        others = "where others are waiting" if waited else "which others have left"
        return [p.rank for p in behind], f"it is not inside the newest collective (number {newest}), {others}"
    operations = [position.operation for position in positions]
    common = max(operations, key=operations.count)
    if operations.count(common) > len(operations) / 2:
        odd = [position.rank for position in positions if position.operation != common]
        if odd:
            return odd, f"it is inside a different collective than the others, which are in {common}"
    if len(set(operations)) > 1:
        each = ", ".join(f"rank {position.rank} in {position.operation}" for position in positions)
        return [], f"the ranks are inside different collectives ({each}), so they took different paths through the code"
    return [], "all ranks are inside the same collective, so the connection between them is stuck, not a single rank"


class Watch:
    """Watches the ranks of one attempt for silence."""

    def __init__(self, paths: AttemptPaths, expected: int, settings: Settings) -> None:
        self._paths, self._expected, self._settings = paths, expected, settings
        self._asked_at: float | None = None
        self._looked_at, self._awake_since = time.time(), 0.0

    def flags(self, ranks: Mapping[int, Heard]) -> set[int]:
        """Return the ranks that have been silent for longer than the stall limit."""
        silent = self._silences(ranks)
        return {rank for rank, seconds in silent.items() if seconds > self._settings.stall_seconds}

    def check(self, ranks: Mapping[int, Heard], started_at: float, handle: Handle) -> Stop | None:
        """Return why the attempt must be ended, else None. Stacks are requested a little earlier."""
        silent = self._silences(ranks)
        late = self._late(ranks, started_at)
        if late is not None:
            return late
        processes = handle.ranks()
        if any(rank in processes and not processes[rank].alive for rank in silent):
            return None  # the supervisor ends such an attempt and knows the reason better
        hanging = {rank for rank, seconds in silent.items() if seconds > self._settings.hang_seconds}
        if not hanging or self._only_waiting(hanging, silent, processes):
            self._asked_at = None
            return None
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            handle.ask_for_stacks()
            return None
        if time.monotonic() - self._asked_at < ANSWER_SECONDS:
            return None
        handle.take_stacks([rank for rank, heard in ranks.items() if not self._has_stack(rank) and not heard.ended])
        return self._conclude(ranks, silent, processes)

    def _silences(self, ranks: Mapping[int, Heard]) -> dict[int, float]:
        """Return the seconds since the latest event of each active rank, counting only while this worker was awake."""
        moment = time.time()
        if moment - self._looked_at > GAP_SECONDS:
            self._awake_since = (
                moment  # the machine was suspended or this worker was stopped: the ranks may have been suspended too
            )
        self._looked_at = moment
        return {
            rank: moment - max(heard.newest, self._awake_since)
            for rank, heard in ranks.items()
            if heard.started and not heard.ended
        }

    def _late(self, ranks: Mapping[int, Heard], started_at: float) -> Stop | None:
        missing = [rank for rank in range(self._expected) if rank not in ranks or not ranks[rank].started]
        if not missing or time.time() - started_at <= self._settings.start_seconds:
            return None
        alone = self._expected == 1 or len(missing) < self._expected
        who = f"Rank {missing[0]}" if alone else f"None of the {self._expected} ranks"
        text = (
            f"{who} sent {'no' if alone else 'an'} event within {self._settings.start_seconds:g} seconds of its start "
            f"(DDP_AUDIT_START_SECONDS); {len(missing)} of {self._expected} ranks never started."
        )
        failure = failure_document(
            rank=missing[0] if alone else None, phase="start", step=0 if alone else None, last_line=text
        )
        return Stop(reason=Reason.LAUNCH_ERROR, failure=failure, diagnosis=text)

    def _only_waiting(
        self, hanging: set[int], silent: Mapping[int, float], processes: Mapping[int, RankProcess]
    ) -> bool:
        """Whether the silent ranks wait in a collective for a rank that still reports progress."""
        if not silent.keys() - hanging:
            return False
        crumbs = [read_crumb(self._paths.breadcrumb(rank)) for rank in hanging]
        inside = all(crumb is not None and crumb.inside for crumb in crumbs)
        return inside and not any(_is_stopped(processes, rank) for rank in hanging)

    def _conclude(
        self, ranks: Mapping[int, Heard], silent: Mapping[int, float], processes: Mapping[int, RankProcess]
    ) -> Stop:
        several = len({heard.node for heard in ranks.values() if heard.started}) > 1
        positions = [
            replace(
                self._position(rank, ranks[rank], seconds, stopped=_is_stopped(processes, rank)),
                node=ranks[rank].node if several else "",
            )
            for rank, seconds in sorted(silent.items())
        ]
        odd, why = odd_ranks(positions)
        culprit = next((position for position in positions if odd and position.rank == odd[0]), None)
        text = hang_text(positions, odd, why, self._settings.hang_seconds)
        failure = failure_document(
            rank=culprit.rank if culprit else None,
            phase=culprit.phase if culprit else None,
            step=culprit.step if culprit else None,
            last_line=culprit.text() if culprit else why,
        )
        return Stop(reason=Reason.HANG, failure=failure, diagnosis=text)

    def _has_stack(self, rank: int) -> bool:
        try:
            return self._paths.stacks(rank).stat().st_size > 0
        except OSError:
            return False

    def _position(self, rank: int, heard: Heard, silent: float, *, stopped: bool) -> Position:
        crumb = read_crumb(self._paths.breadcrumb(rank))
        return Position(
            rank=rank,
            silent=silent,
            stopped=stopped,
            collective=crumb.collective if crumb else 0,
            inside=bool(crumb and crumb.inside),
            operation=crumb.operation if crumb else "",
            phase=crumb.phase if crumb else heard.phase,
            step=crumb.step if crumb else heard.step,
            has_stack=self._has_stack(rank),
        )


def _is_stopped(processes: Mapping[int, RankProcess], rank: int) -> bool:
    return rank in processes and processes[rank].stopped


def hang_text(positions: Sequence[Position], odd: Sequence[int], why: str, limit: float) -> str:
    """Return the text about a hang: the blocking rank first, then every position."""
    where_is = {position.rank: f" on {position.node}" for position in positions if position.node}
    head = (
        f"No single rank is the cause: {why}."
        if not odd
        else f"Rank {odd[0]}{where_is.get(odd[0], '')} holds up the run: {why}."
    )
    also = f" The same applies to rank {', '.join(map(str, odd[1:]))}." if odd[1:] else ""
    where = "; ".join(position.text() for position in positions)
    return (
        f"{head}{also} A rank was silent for more than {limit:g} seconds (DDP_AUDIT_HANG_SECONDS). Positions: {where}. "
        "Unequal token counts are normal, unequal numbers of collectives are not. The stacks of the ranks that could "
        "respond are stored next to their events."
    )
