"""Facts -> outcome: the first failing rank is named whatever the others report, and every reason has its facts."""

import re
from dataclasses import replace
from typing import Any

import pytest

from app.runs.states import REASONS, Reason, State, check_move
from trainer.contract.reasons import COMMON
from trainer.contract.reasons import REASONS as REASONS_OF_KINDS
from worker.executors.base import Fate
from worker.facts import Facts, RankEnd
from worker.outcome import BY_ERROR, judge, stage_ended_well

CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"
INIT = "GroupInitError: the gloo group of 2 ranks could not be initialised: Address already in use"


def rank(number: int, **known: Any) -> RankEnd:
    values = {"phase": "backward", "step": 7, "died_at": 100.0 + number, "collective": 5, "inside": True}
    return RankEnd(rank=number, **{**values, **known})


def well(number: int, **known: Any) -> RankEnd:
    return rank(number, **{"exit_code": 0, "finished": True, "phase": "end", "inside": False, **known})


def facts(*ranks: RankEnd, **known: Any) -> Facts:
    return Facts(
        **{"stage": "train", "ranks": ranks, "expected": len(ranks), "main_exit_code": 1, "main_pid": 4, **known}
    )


@pytest.mark.parametrize("victim", [0, 1])
def test_signal_outranks_broken_connection(victim: int) -> None:
    other = 1 - victim
    ended = facts(
        rank(victim, signal=9, died_at=100.2),
        rank(other, exit_code=1, died_at=100.1, error_at=100.05, last_line=CLOSED),
        first=other,
    )
    outcome = judge(replace(ended, ranks=tuple(sorted(ended.ranks, key=lambda item: item.rank))))
    assert (outcome.state, outcome.reason) == (State.FAILED, Reason.RANK_SIGNAL)
    assert outcome.failure is not None
    assert (outcome.failure["rank"], outcome.failure["signal"]) == (victim, 9)
    assert f"rank {other} was stopped by the launcher" in outcome.diagnosis


def test_own_error_outranks_broken_connection() -> None:
    outcome = judge(
        facts(
            rank(0, exit_code=1, error_at=99.0, last_line=CLOSED),
            rank(1, exit_code=1, error_at=99.5, error="ValueError", last_line="ValueError: no"),
        )
    )
    assert outcome.failure is not None
    assert (outcome.failure["rank"], outcome.failure["last_line"]) == (1, "ValueError: no")


def test_node_stands_beside_the_rank() -> None:
    named, nobody = judge(facts(rank(0, exit_code=3), nodes={0: "n1"})).failure, judge(facts(nodes={0: "n1"})).failure
    assert named is not None
    assert nobody is not None
    assert (named["rank"], named["node"]) == (0, "n1")
    assert (nobody["rank"], nobody["node"]) == (None, None)


def test_earlier_exception_is_first() -> None:
    early, late = {"exit_code": 1, "error_at": 50.0, "last_line": "A: a"}, {"exit_code": 1, "last_line": "B: b"}
    for number in (0, 1):
        ranks = (rank(number, **early), rank(1 - number, error_at=51.0, **late))
        failure = judge(facts(*ranks)).failure
        assert failure is not None
        assert failure["rank"] == number


def test_rank_killed_by_supervisor_is_no_cause() -> None:
    outcome = judge(
        facts(rank(0, signal=9, died_at=110.0), rank(1, exit_code=3, died_at=100.0), killed_at=109.9, first=1)
    )
    assert outcome.failure is not None
    assert outcome.failure["rank"] == 1


def test_agent_killed_names_no_rank() -> None:
    outcome = judge(
        facts(
            rank(0, signal=9), rank(1, signal=9), main_exit_code=None, main_signal=9, main_ended_at=100.2, main_pid=42
        )
    )
    assert outcome.reason is Reason.LAUNCH_ERROR
    assert outcome.failure is not None
    assert outcome.failure["rank"] is None
    assert "torchrun agent (pid 42)" in outcome.diagnosis


def test_rank_killed_before_agent_is_named() -> None:
    outcome = judge(
        facts(
            rank(0, signal=9, died_at=90.0), rank(1, signal=9), main_exit_code=None, main_signal=9, main_ended_at=101.0
        )
    )
    assert outcome.failure is not None
    assert outcome.failure["rank"] == 0


def test_early_leaver_is_named() -> None:
    outcome = judge(
        facts(
            rank(0, exit_code=1, last_line=CLOSED, collective=6),
            well(1, collective=5, progress=(2.0, 5.0, "steps")),
        )
    )
    assert outcome.failure is not None
    assert outcome.failure["rank"] == 1
    assert "finished 2 of 5 steps" in outcome.diagnosis
    assert "after 5 collectives, while others entered 6" in outcome.diagnosis


@pytest.mark.parametrize("end", [{"signal": 15}, {"signal": 9}, {"exit_code": 143}, {}])
def test_early_leaver_is_named_however_it_was_ended(end: dict[str, Any]) -> None:
    leaver = rank(1, collective=5, finished=True, phase="end", died_at=103.0, **end)
    closed = rank(0, exit_code=1, error_at=99.0, last_line=CLOSED, collective=6)
    outcome = judge(facts(closed, leaver, killed_at=102.0, first=0))
    assert outcome.reason is Reason.RANK_EXIT
    assert outcome.failure is not None
    assert outcome.failure["rank"] == 1
    equal = replace(leaver, collective=6)
    failure = judge(facts(closed, equal, killed_at=102.0, first=0)).failure
    assert failure is not None
    assert failure["rank"] == 0


def test_finished_rank_is_no_cause_of_late_error() -> None:
    outcome = judge(facts(rank(0, exit_code=1, last_line="ValueError: plot"), well(1, died_at=90.0)))
    assert outcome.failure is not None
    assert outcome.failure["rank"] == 0


@pytest.mark.parametrize(
    ("ranks", "known", "reason"),
    [
        ([rank(0, exit_code=65), rank(1, exit_code=65)], {}, Reason.PREEMPTED),
        ([rank(0, exit_code=1, error="OutOfMemoryError", last_line="x")], {}, Reason.OUT_OF_MEMORY),
        ([rank(0, exit_code=1, last_line="RuntimeError: can't allocate memory: 9 TB")], {}, Reason.OUT_OF_MEMORY),
        ([rank(0, signal=9)], {"oom_kills": 1}, Reason.OUT_OF_MEMORY),
        ([rank(0, signal=9)], {}, Reason.RANK_SIGNAL),
        ([rank(0, signal=11)], {"oom_kills": 1}, Reason.RANK_SIGNAL),
        ([rank(0, exit_code=1, last_line="OSError: [Errno 28] No space left on device")], {}, Reason.DISK_FULL),
        ([], {"launch_error": "OSError: [Errno 28] No space left on device: x"}, Reason.DISK_FULL),
        ([], {"fate": Fate.NO_SPACE}, Reason.DISK_FULL),
        ([rank(0, exit_code=1, error="GroupInitError", last_line=INIT)], {}, Reason.LAUNCH_ERROR),
        ([], {"launch_error": "port 1 on 127.0.0.1 cannot be used"}, Reason.LAUNCH_ERROR),
        ([], {}, Reason.LAUNCH_ERROR),
        ([rank(0, exit_code=1, error="DeviceMapError", last_line="DeviceMapError: x")], {}, Reason.NO_DEVICES),
        ([rank(0, exit_code=7)], {}, Reason.RANK_EXIT),
        ([rank(0, exit_code=0)], {}, Reason.RANK_EXIT),
        ([], {"fate": Fate.LOST}, Reason.WORKER_LOST),
        ([], {"fate": Fate.GONE}, Reason.WORKER_LOST),
        ([], {"fate": Fate.REBOOTED}, Reason.NODE_FAILURE),
        ([rank(0, signal=15)], {"stop_reason": Reason.HANG}, Reason.HANG),
        ([rank(0, signal=15)], {"stop_reason": Reason.TIME_LIMIT}, Reason.TIME_LIMIT),
        ([well(0)], {"cancelled": True}, Reason.CANCELLED_BY_USER),
    ],
)
def test_every_reason_has_its_facts(ranks: list[RankEnd], known: dict[str, Any], reason: Reason) -> None:
    outcome = judge(facts(*ranks, checkpoint="checkpoints/step-0005", **known))
    assert outcome.reason is reason
    assert reason in REASONS[outcome.state]
    origin = State.STOPPING if "stop_reason" in known or "cancelled" in known else State.RUNNING
    check_move(origin, outcome.state, outcome.reason)
    assert outcome.diagnosis
    assert not re.search(r"None|\{|\.\.", outcome.diagnosis)
    if outcome.failure is not None:
        assert outcome.failure["checkpoint"] == "checkpoints/step-0005"


def test_cancel_wins_over_everything() -> None:
    for ranks in ([rank(0, signal=11)], [rank(0, exit_code=1, last_line="No space left on device")], [well(0)]):
        for known in ({}, {"stop_reason": Reason.HANG}, {"fate": Fate.LOST}):
            outcome = judge(facts(*ranks, cancelled=True, processes_ended=3, **known))
            assert outcome.state is State.CANCELLED
            assert "3 processes were ended, none is left, and the devices are free" in outcome.diagnosis


def test_left_over_process_is_admitted() -> None:
    text = judge(facts(well(0), cancelled=True, processes_ended=3, processes_left=1)).diagnosis
    assert "1 could not be" in text
    assert "free" not in text


def test_success_needs_every_rank() -> None:
    good = facts(well(0), well(1), main_exit_code=0)
    assert stage_ended_well(good)
    assert not stage_ended_well(replace(good, expected=3))
    assert not stage_ended_well(replace(good, ranks=(well(0), well(1, finished=False))))
    assert not stage_ended_well(replace(good, ranks=(well(0), well(1, exit_code=1))))
    assert not stage_ended_well(replace(good, ranks=()))
    assert not stage_ended_well(replace(good, fate=Fate.LOST))


def test_noted_culprit_of_hang_stays() -> None:
    noted = {"failure": {"rank": 1, "phase": "train"}, "diagnosis": "Rank 1 holds up the run."}
    outcome = judge(facts(rank(0, signal=9), stop_reason=Reason.HANG, noted=noted, processes_ended=1, checkpoint="c"))
    assert outcome.failure == {"rank": 1, "phase": "train", "checkpoint": "c", "node": None}
    assert outcome.diagnosis.startswith("Rank 1 holds up the run. 1 process was ended")


def test_kind_says_what_its_exception_means() -> None:
    ended = facts(rank(0, exit_code=1, error="LicenceExpired", last_line="LicenceExpired: since May"))
    assert judge(ended).reason is Reason.RANK_EXIT
    told = judge(replace(ended, reasons={"LicenceExpired": Reason.LAUNCH_ERROR}))
    assert (told.state, told.reason) == (State.FAILED, Reason.LAUNCH_ERROR)
    assert "LicenceExpired: since May" in told.diagnosis
    check_move(State.RUNNING, told.state, told.reason)


def test_words_of_the_contract_are_reasons_of_a_failure() -> None:
    assert set(REASONS_OF_KINDS) <= {str(reason) for reason in REASONS[State.FAILED]}
    assert set(BY_ERROR) == set(COMMON)
    assert set(COMMON.values()) <= REASONS_OF_KINDS
