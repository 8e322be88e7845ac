"""Silence of ranks: counted from the newest event, not through a sleep of the machine, not for dead ranks."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.runs.states import Reason
from app.settings import Settings
from trainer.contract.crumb import CrumbWriter
from trainer.contract.paths import AttemptPaths
from worker import hang
from worker.hang import Watch
from worker.lines import Heard


@pytest.fixture
def pids() -> Iterator[list[int]]:
    environment = {**os.environ, "DDP_AUDIT_MARKER": "m"}
    started = [subprocess.Popen(["sleep", "60"], env=environment) for _ in range(2)]
    yield [process.pid for process in started]
    for process in started:
        process.kill()
        process.wait()


def watch(tmp_path: Path) -> Watch:
    settings = Settings(data_dir=tmp_path, stall_seconds=5, hang_seconds=20, start_seconds=30)
    return Watch(AttemptPaths(tmp_path), "m", 2, settings)


def heard(pid: int, silent: float) -> Heard:
    return Heard(started=True, pid=pid, newest=time.time() - silent, phase="train", step=1)


def crumb(tmp_path: Path, rank: int, collectives: int, *, inside: bool) -> None:
    writer = CrumbWriter(AttemptPaths(tmp_path).breadcrumb(rank))
    writer.collective, writer.inside, writer.operation = collectives, inside, "gradients"
    writer.flush()


def verdict(this: Watch, ranks: dict[int, Heard]) -> hang.Stop | None:
    """Look twice: the first look asks for stacks, the second concludes."""
    first = this.check(ranks, time.time())
    if this._asked_at is not None:
        this._asked_at -= hang.ANSWER_SECONDS
    return first or this.check(ranks, time.time())


def test_stall_is_flagged_before_hang(tmp_path: Path, pids: list[int]) -> None:
    this, ranks = watch(tmp_path), {0: heard(pids[0], 6), 1: heard(pids[1], 1)}
    assert this.flags(ranks) == {0}
    assert verdict(this, ranks) is None


def test_rank_behind_hangs(tmp_path: Path, pids: list[int]) -> None:
    crumb(tmp_path, 0, 7, inside=True)
    crumb(tmp_path, 1, 6, inside=False)
    stop = verdict(watch(tmp_path), {0: heard(pids[0], 25), 1: heard(pids[1], 25)})
    assert stop is not None
    assert stop.reason is Reason.HANG
    assert stop.failure["rank"] == 1


def test_waiting_for_a_working_rank_is_no_hang(tmp_path: Path, pids: list[int]) -> None:
    crumb(tmp_path, 0, 7, inside=True)
    crumb(tmp_path, 1, 6, inside=False)
    ranks = {0: heard(pids[0], 25), 1: heard(pids[1], 2)}
    assert verdict(watch(tmp_path), ranks) is None
    crumb(tmp_path, 0, 7, inside=False)
    assert verdict(watch(tmp_path), ranks) is not None


def test_dead_rank_is_left_to_the_supervisor(tmp_path: Path, pids: list[int]) -> None:
    crumb(tmp_path, 0, 7, inside=True)
    ranks = {0: heard(pids[0], 25), 1: heard(2**22 + 1, 25)}
    assert verdict(watch(tmp_path), ranks) is None


def test_ended_rank_is_not_silent(tmp_path: Path, pids: list[int]) -> None:
    ranks = {0: heard(pids[0], 1), 1: heard(pids[1], 100)}
    ranks[1].ended = True
    assert watch(tmp_path).flags(ranks) == set()


def test_sleep_of_the_machine_is_excused(tmp_path: Path, pids: list[int]) -> None:
    this, ranks = watch(tmp_path), {0: heard(pids[0], 25), 1: heard(pids[1], 25)}
    this._looked_at -= 3600
    assert this.flags(ranks) == set()
    assert verdict(this, ranks) is None


def test_rank_that_never_began_is_late(tmp_path: Path, pids: list[int]) -> None:
    this, began = watch(tmp_path), time.time() - 31
    stop = this.check({0: heard(pids[0], 1)}, began)
    assert stop is not None
    assert (stop.reason, stop.failure["rank"]) == (Reason.LAUNCH_ERROR, 1)
    stop = this.check({}, began)
    assert stop is not None
    assert stop.failure["rank"] is None
    assert "None of the 2 ranks sent an event" in stop.diagnosis
    assert this.check({}, time.time()) is None
