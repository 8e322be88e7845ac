"""Silence of ranks: counted from the newest event, not through a sleep of the machine, not for dead ranks."""

import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import cast

from app.runs.states import Reason
from app.settings import Settings
from trainer.contract.crumb import CrumbWriter
from trainer.contract.paths import AttemptPaths
from worker import hang
from worker.executors.base import Handle, RankProcess
from worker.hang import Watch
from worker.lines import Heard

ALIVE = {0: RankProcess(alive=True), 1: RankProcess(alive=True)}


class Sight:
    """The part of a handle that the watch uses: returns given ranks and counts requests."""

    def __init__(self, processes: Mapping[int, RankProcess] = ALIVE) -> None:
        self._processes, self.asked = processes, 0
        self.taken: list[int] = []

    def ranks(self) -> Mapping[int, RankProcess]:
        return self._processes

    def ask_for_stacks(self) -> None:
        self.asked += 1

    def take_stacks(self, ranks: Collection[int]) -> None:
        self.taken += ranks


def watch(tmp_path: Path) -> Watch:
    settings = Settings(data_dir=tmp_path, stall_seconds=5, hang_seconds=20, start_seconds=30)
    return Watch(AttemptPaths(tmp_path), 2, settings)


def heard(silent: float) -> Heard:
    return Heard(started=True, newest=time.time() - silent, phase="train", step=1)


def crumb(tmp_path: Path, rank: int, collectives: int, *, inside: bool) -> None:
    writer = CrumbWriter(AttemptPaths(tmp_path).breadcrumb(rank))
    writer.collective, writer.inside, writer.operation = collectives, inside, "gradients"
    writer.flush()


def check(this: Watch, ranks: dict[int, Heard], began: float, sight: Sight | None = None) -> hang.Stop | None:
    return this.check(ranks, began, cast("Handle", sight or Sight()))


def verdict(this: Watch, ranks: dict[int, Heard], sight: Sight | None = None) -> hang.Stop | None:
    """Check twice: the first check requests stacks, the second concludes."""
    sight = sight or Sight()
    first = check(this, ranks, time.time(), sight)
    if this._asked_at is not None:
        this._asked_at -= hang.ANSWER_SECONDS
    return first or check(this, ranks, time.time(), sight)


def test_stall_is_flagged_before_hang(tmp_path: Path) -> None:
    this, ranks = watch(tmp_path), {0: heard(6), 1: heard(1)}
    assert this.flags(ranks) == {0}
    assert verdict(this, ranks) is None


def test_rank_behind_hangs(tmp_path: Path) -> None:
    crumb(tmp_path, 0, 7, inside=True)
    crumb(tmp_path, 1, 6, inside=False)
    stop = verdict(watch(tmp_path), {0: heard(25), 1: heard(25)})
    assert stop is not None
    assert stop.reason is Reason.HANG
    assert stop.failure["rank"] == 1


def test_waiting_for_a_working_rank_is_no_hang(tmp_path: Path) -> None:
    crumb(tmp_path, 0, 7, inside=True)
    crumb(tmp_path, 1, 6, inside=False)
    ranks = {0: heard(25), 1: heard(2)}
    assert verdict(watch(tmp_path), ranks) is None
    crumb(tmp_path, 0, 7, inside=False)
    assert verdict(watch(tmp_path), ranks) is not None


def test_dead_rank_is_left_to_the_supervisor(tmp_path: Path) -> None:
    crumb(tmp_path, 0, 7, inside=True)
    ranks = {0: heard(25), 1: heard(25)}
    dead = {0: ALIVE[0], 1: RankProcess(alive=False)}
    assert verdict(watch(tmp_path), ranks, Sight(dead)) is None
    assert verdict(watch(tmp_path), ranks, Sight()) is not None


def test_rank_out_of_sight_is_judged_by_its_silence(tmp_path: Path) -> None:
    crumb(tmp_path, 0, 7, inside=True)
    crumb(tmp_path, 1, 6, inside=False)
    stop = verdict(watch(tmp_path), {0: heard(25), 1: heard(25)}, Sight({}))
    assert stop is not None
    assert stop.failure["rank"] == 1


def test_stopped_rank_explains_the_wait(tmp_path: Path) -> None:
    crumb(tmp_path, 0, 7, inside=True)
    crumb(tmp_path, 1, 7, inside=True)
    ranks = {0: heard(25), 1: heard(2)}
    assert verdict(watch(tmp_path), ranks) is None
    stop = verdict(watch(tmp_path), ranks, Sight({0: RankProcess(alive=True, stopped=True), 1: ALIVE[1]}))
    assert stop is not None
    assert stop.failure["rank"] == 0


def test_stacks_are_asked_for_once_and_taken_from_the_silent(tmp_path: Path) -> None:
    crumb(tmp_path, 0, 7, inside=True)
    crumb(tmp_path, 1, 6, inside=False)
    AttemptPaths(tmp_path).stacks(1).write_text("File ...")
    sight = Sight()
    assert verdict(watch(tmp_path), {0: heard(25), 1: heard(25)}, sight) is not None
    assert (sight.asked, sight.taken) == (1, [0])


def test_ended_rank_is_not_silent(tmp_path: Path) -> None:
    ranks = {0: heard(1), 1: heard(100)}
    ranks[1].ended = True
    assert watch(tmp_path).flags(ranks) == set()


def test_sleep_of_the_machine_is_excused(tmp_path: Path) -> None:
    this, ranks = watch(tmp_path), {0: heard(25), 1: heard(25)}
    this._looked_at -= 3600
    assert this.flags(ranks) == set()
    assert verdict(this, ranks) is None


def test_rank_that_never_began_is_late(tmp_path: Path) -> None:
    this, began = watch(tmp_path), time.time() - 31
    stop = check(this, {0: heard(1)}, began)
    assert stop is not None
    assert (stop.reason, stop.failure["rank"]) == (Reason.LAUNCH_ERROR, 1)
    stop = check(this, {}, began)
    assert stop is not None
    assert stop.failure["rank"] is None
    assert "None of the 2 ranks sent an event" in stop.diagnosis
    assert check(this, {}, time.time()) is None
