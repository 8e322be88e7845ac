"""Slurm's states and reasons -> what the worker makes of them, and what the run says in the end."""

from typing import Any

import pytest

from app.runs.states import Reason, State, check_move
from worker.executors.base import Fate, Phase
from worker.executors.slurm.listing import SlurmJob
from worker.executors.slurm.states import ENDS, HOPELESS, PENDING, meaning_of
from worker.facts import Facts, RankEnd
from worker.outcome import judge


def job(state: str, **known: Any) -> SlurmJob:
    return SlurmJob(id=77, state=state, **known)


@pytest.mark.parametrize(
    ("state", "phase", "fate"),
    [
        ("RUNNING", Phase.RUNNING, Fate.REPORTED),
        ("COMPLETING", Phase.RUNNING, Fate.REPORTED),
        ("PENDING", Phase.WAITING, Fate.REPORTED),
        ("CONFIGURING", Phase.WAITING, Fate.REPORTED),
        ("SUSPENDED", Phase.WAITING, Fate.REPORTED),
        ("STOPPED", Phase.WAITING, Fate.REPORTED),
        ("COMPLETED", Phase.ENDED, Fate.REPORTED),
        ("FAILED", Phase.ENDED, Fate.REPORTED),
        ("CANCELLED", Phase.ENDED, Fate.TAKEN),
        ("TIMEOUT", Phase.ENDED, Fate.TIMED_OUT),
        ("DEADLINE", Phase.ENDED, Fate.TIMED_OUT),
        ("OUT_OF_MEMORY", Phase.ENDED, Fate.OUT_OF_MEMORY),
        ("NODE_FAIL", Phase.ENDED, Fate.NODE_LOST),
        ("BOOT_FAIL", Phase.ENDED, Fate.NODE_LOST),
        ("PREEMPTED", Phase.ENDED, Fate.PREEMPTED),
        ("REQUEUED", Phase.ENDED, Fate.REQUEUED),
        ("REQUEUE_HOLD", Phase.ENDED, Fate.REQUEUED),
        ("A_STATE_OF_THE_FUTURE", Phase.WAITING, Fate.REPORTED),
    ],
)
def test_states(state: str, phase: Phase, fate: Fate) -> None:
    seen = meaning_of(job(state))
    assert (seen.phase, seen.fate) == (phase, fate)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETED", "CANCELLED"])
def test_job_that_was_started_again_belongs_to_no_attempt(state: str) -> None:
    seen = meaning_of(job(state, restarts=1))
    assert (seen.phase, seen.fate, seen.withdraw) == (Phase.ENDED, Fate.REQUEUED, True)
    assert not meaning_of(job(state)).withdraw


@pytest.mark.parametrize("reason", sorted(HOPELESS))
def test_hopeless_reasons_end_the_attempt(reason: str) -> None:
    seen = meaning_of(job("PENDING", reason=reason))
    assert (seen.phase, seen.fate, seen.withdraw) == (Phase.ENDED, Fate.NOT_STARTED, True)
    assert reason in seen.why


@pytest.mark.parametrize("reason", [*sorted(PENDING), "QOSMaxJobsPerUserLimit"])
def test_other_reasons_are_waited_for(reason: str) -> None:
    seen = meaning_of(job("PENDING", reason=reason))
    assert (seen.phase, seen.withdraw) == (Phase.WAITING, False)
    assert reason in seen.why
    assert PENDING.get(reason, "") in seen.why


@pytest.mark.parametrize(
    ("state", "ended", "reason"),
    [
        ("TIMEOUT", State.FAILED, Reason.TIME_LIMIT),
        ("OUT_OF_MEMORY", State.FAILED, Reason.OUT_OF_MEMORY),
        ("NODE_FAIL", State.LOST, Reason.NODE_FAILURE),
        ("PREEMPTED", State.FAILED, Reason.PREEMPTED),
        ("CANCELLED", State.FAILED, Reason.RANK_SIGNAL),
    ],
)
def test_ends_are_told_apart_on_the_run(state: str, ended: State, reason: Reason) -> None:
    seen = meaning_of(job(state))
    ranks = tuple(RankEnd(rank=number, signal=15, died_at=1.0) for number in (0, 1))
    facts = Facts(stage="train", ranks=ranks, expected=2, fate=seen.fate, why=seen.why, lost_node="n2", nodes={1: "n2"})
    outcome = judge(facts)
    assert (outcome.state, outcome.reason) == (ended, reason)
    assert outcome.diagnosis.startswith(f"Slurm job 77 {ENDS[state][1]}.")
    assert outcome.failure is not None
    assert (outcome.failure["node"], outcome.failure["rank"]) == ("n2", 1)
    check_move(State.RUNNING, outcome.state, outcome.reason)


@pytest.mark.parametrize("fate", [Fate.TIMED_OUT, Fate.NODE_LOST, Fate.REQUEUED, Fate.TAKEN])
def test_cancel_by_the_user_wins(fate: Fate) -> None:
    assert judge(Facts(stage="train", fate=fate, cancelled=True)).state is State.CANCELLED
