"""Facts about an ended attempt -> state, reason, failure and diagnosis: a pure table, used in one place."""

import re
import signal
from dataclasses import dataclass
from typing import Any, Final

from app.runs.states import Reason, State
from trainer.contract.exits import EXIT_PREEMPTED
from trainer.contract.reasons import COMMON
from worker import diagnosis
from worker.culprit import ended_well, first_failed
from worker.executors.base import Fate
from worker.facts import Facts, RankEnd

OUT_OF_MEMORY: Final = re.compile(r"OutOfMemoryError|out of memory|can't allocate memory|^MemoryError")
NO_SPACE: Final = re.compile(r"No space left on device|\[Errno 28\]|database or disk is full")
BY_ERROR: Final = {name: Reason(word) for name, word in COMMON.items()}
"""Exceptions that give a more specific reason than `rank_exit`; a kind's own are part of the facts."""


SCHEDULED: Final = {
    Fate.REQUEUED: (State.FAILED, Reason.PREEMPTED),
    Fate.PREEMPTED: (State.FAILED, Reason.PREEMPTED),
    Fate.TIMED_OUT: (State.FAILED, Reason.TIME_LIMIT),
    Fate.OUT_OF_MEMORY: (State.FAILED, Reason.OUT_OF_MEMORY),
    Fate.NODE_LOST: (State.LOST, Reason.NODE_FAILURE),
    Fate.TAKEN: (State.FAILED, Reason.RANK_SIGNAL),
}
"""Ends that a scheduler reports, whatever the ranks say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a run."""

    state: State
    reason: Reason
    failure: dict[str, Any] | None
    diagnosis: str


def stage_ended_well(facts: Facts) -> bool:
    """Whether every rank of the attempt finished its work and exited with 0."""
    if facts.launcher == "command":  # it manages its own ranks; only its exit code counts
        well = facts.main_exit_code in {0, None} and facts.main_signal is None
        return well and facts.fate is Fate.REPORTED and facts.launch_error is None
    complete = len(facts.ranks) == facts.expected and all(ended_well(rank) for rank in facts.ranks)
    return complete and facts.fate is Fate.REPORTED and facts.launch_error is None


def judge(facts: Facts) -> Outcome:
    """Return the outcome of a run whose attempt failed or was stopped. A requested cancel takes precedence."""
    if facts.cancelled:
        return Outcome(
            state=State.CANCELLED,
            reason=Reason.CANCELLED_BY_USER,
            failure=None,
            diagnosis=diagnosis.cancelled(facts),
        )
    if facts.stop_reason is not None:
        return _stopped(facts)
    if facts.fate is Fate.NO_SPACE:
        return _failed(Reason.DISK_FULL, None, facts, diagnosis.supervisor_without_space(facts))
    if facts.fate in SCHEDULED:
        return _scheduled(facts)
    if facts.fate in {Fate.LOST, Fate.GONE, Fate.REBOOTED}:
        return _lost(facts)
    return _ended_by_itself(facts)


def invalid_result(facts: Facts, problem: str) -> Outcome:
    """Return the outcome of a run whose stages succeeded but whose result is invalid."""
    return _failed(Reason.INVALID_RESULT, None, facts, diagnosis.invalid_result(problem))


def _stopped(facts: Facts) -> Outcome:
    reason = facts.stop_reason or Reason.TIME_LIMIT
    culprit = first_failed(facts)
    failure = facts.noted.get("failure") or _failure(None if reason is Reason.TIME_LIMIT else culprit, facts)
    text = str(facts.noted.get("diagnosis") or f"The run was stopped in stage {facts.stage}.")
    return Outcome(
        state=State.FAILED,
        reason=reason,
        failure={**failure, **_where(failure.get("rank"), facts)},
        diagnosis=f"{text} {diagnosis.processes_ended(facts)} {diagnosis.checkpoint_of(facts)}",
    )


def _scheduled(facts: Facts) -> Outcome:
    state, reason = SCHEDULED[facts.fate]
    culprit = first_failed(facts) if facts.fate is Fate.OUT_OF_MEMORY else None
    failure = _failure(culprit, facts)
    if facts.lost_node:
        ranks = [rank for rank, node in sorted(facts.nodes.items()) if node == facts.lost_node]
        failure |= {"node": facts.lost_node, "rank": ranks[0] if ranks else None}
    return Outcome(state=state, reason=reason, failure=failure, diagnosis=diagnosis.ended_by_scheduler(facts))


def _lost(facts: Facts) -> Outcome:
    texts = {Fate.REBOOTED: diagnosis.rebooted, Fate.GONE: diagnosis.folder_gone}
    return Outcome(
        state=State.LOST,
        reason=Reason.NODE_FAILURE if facts.fate is Fate.REBOOTED else Reason.WORKER_LOST,
        failure=_failure(None, facts),
        diagnosis=texts.get(facts.fate, diagnosis.supervisor_lost)(facts),
    )


def _ended_by_itself(facts: Facts) -> Outcome:
    if facts.ranks and all(rank.exit_code == EXIT_PREEMPTED for rank in facts.ranks):
        return _failed(Reason.PREEMPTED, None, facts, diagnosis.preempted(facts))
    full = next((rank for rank in facts.ranks if NO_SPACE.search(rank.last_line)), None)
    if full is not None or NO_SPACE.search(facts.launch_error or ""):
        return _failed(Reason.DISK_FULL, full, facts, diagnosis.disk_full(full, facts))
    if facts.launch_error is not None:
        return _failed(Reason.LAUNCH_ERROR, None, facts, diagnosis.launch_error(facts))
    culprit = first_failed(facts)
    if culprit is None and facts.launcher == "command":
        reason = Reason.RANK_EXIT if facts.main_signal is None else Reason.RANK_SIGNAL
        return _failed(reason, None, facts, diagnosis.program_ended(facts))
    if culprit is None:
        return _failed(Reason.LAUNCH_ERROR, None, facts, diagnosis.launcher_ended(facts))
    reason = reason_of(culprit, facts)
    return _failed(reason, culprit, facts, diagnosis.rank_failed(culprit, reason, facts))


def reason_of(culprit: RankEnd, facts: Facts) -> Reason:
    """Return the reason for a rank's end. A bare SIGKILL is not evidence of lack of memory; a kernel record is."""
    if culprit.finished:
        return Reason.RANK_EXIT
    said = facts.reasons.get(culprit.error) or BY_ERROR.get(culprit.error)
    if said is not None:
        return said
    if culprit.exit_code not in {None, 0} and OUT_OF_MEMORY.search(culprit.last_line):
        return Reason.OUT_OF_MEMORY
    if culprit.signal == signal.SIGKILL and facts.oom_kills > 0:
        return Reason.OUT_OF_MEMORY
    return Reason.RANK_SIGNAL if culprit.signal is not None else Reason.RANK_EXIT


def _failed(reason: Reason, culprit: RankEnd | None, facts: Facts, text: str) -> Outcome:
    return Outcome(state=State.FAILED, reason=reason, failure=_failure(culprit, facts), diagnosis=text)


def _failure(culprit: RankEnd | None, facts: Facts) -> dict[str, Any]:
    if culprit is None:
        last = facts.launch_error or facts.main_last_line
        return failure_document(
            exit_code=facts.main_exit_code, signal=facts.main_signal, last_line=last, checkpoint=facts.checkpoint
        )
    return failure_document(
        rank=culprit.rank,
        node=facts.nodes.get(culprit.rank),
        phase=culprit.phase,
        step=culprit.step,
        exit_code=culprit.exit_code,
        signal=culprit.signal,
        last_line=culprit.last_line,
        checkpoint=facts.checkpoint,
    )


def _where(rank: int | None, facts: Facts) -> dict[str, Any]:
    return {"node": None if rank is None else facts.nodes.get(rank), "checkpoint": facts.checkpoint}


def failure_document(**known: Any) -> dict[str, Any]:
    """Return a run's `failure` with every key; keys that are not `known` are null."""
    keys = ("rank", "node", "phase", "step", "exit_code", "signal", "last_line", "checkpoint")
    return {key: known.get(key) for key in keys}
