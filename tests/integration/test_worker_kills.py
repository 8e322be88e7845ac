"""Kills on purpose: they hit living ranks during training, count only then, and the stage continues after each."""

import json
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.support.worker_lab import open_lab
from trainer.contract.kills import Kill, Whereabouts, load_kills, save_kills
from trainer.contract.kinds import KillPlan
from trainer.contract.paths import RunPaths
from worker.killer import LATEST_SHARE, Course, Killer, course_of, draw_moments

COURSE = Course(setting_up=2.0, working=8.0, updates=40)
PLAN = KillPlan(count=4, seed=47, after_stage="calm")
EARLY = draw_moments(PLAN, 10.0)[0]


@pytest.mark.torchrun
def test_killed_stage_goes_on(tmp_path: Path) -> None:
    with open_lab(tmp_path) as lab:
        lab.worker()
        run_id = lab.submit(kills=2, steps=40, step_seconds=0.05, save_every=5, meeting="files")
        run = lab.finished(run_id, 200)
        assert (run.state, run.verdict) == ("succeeded", "pass"), run.diagnosis
        assert [(row.stage, row.attempt, row.state) for row in lab.attempts(run_id)] == [
            ("calm", 1, "succeeded"),
            ("killed", 1, "killed"),
            ("killed", 2, "killed"),
            ("killed", 3, "succeeded"),
        ]
        kills = json.loads(lab.paths(run_id).kills("killed").read_text())
        assert [(kill["attempt"], kill["hit"], kill["ranks"]) for kill in kills] == [
            (1, True, [0, 1]),
            (2, True, [0, 1]),
        ]
        for kill in kills:
            assert {crumb["phase"] for crumb in kill["crumbs"].values()} == {"train"}
        signals = [row.signal for row in lab.ranks(run_id) if row.stage == "killed" and row.attempt < 3]
        assert signals == [9, 9, 9, 9]
        lab.assert_events_complete(run_id)
        assert not lab.processes()


def test_moments_are_spread_and_repeatable() -> None:
    moments = draw_moments(PLAN, 10.0)
    assert moments == sorted(moments) == draw_moments(PLAN, 10.0)
    assert all(0 < moment < 10 * LATEST_SHARE for moment in moments)
    many = draw_moments(KillPlan(count=4000, seed=1, after_stage="calm"), 10.0)
    assert sum(many) / len(many) == pytest.approx(5 * LATEST_SHARE, rel=0.05)
    assert moments != draw_moments(KillPlan(count=4, seed=48, after_stage="calm"), 10.0)


def write_events(
    paths: RunPaths, stage: str, attempt: int, rank: int, *events: tuple[str, float], **fields: object
) -> None:
    path = paths.attempt(stage, attempt).events(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"type": kind, "t": at, **fields}) + "\n" for kind, at in events))


def test_kill_waits_for_every_start(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    killer = Killer(paths, "killed", 1, ranks=2, plan=PLAN, course=COURSE)
    write_events(paths, "killed", 1, 0, ("start", 100.0))
    assert killer.due() is None
    write_events(paths, "killed", 1, 1, ("start", 103.0))
    assert killer.due() == 103.0 + EARLY


def test_kill_in_training_waits_for_the_first_step(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    course = Course(setting_up=EARLY / 2, working=10.0 - EARLY / 2, updates=40)
    killer = Killer(paths, "killed", 1, ranks=2, plan=PLAN, course=course)
    for rank in (0, 1):
        write_events(paths, "killed", 1, rank, ("start", 100.0))
    assert killer.due() is None
    for rank in (0, 1):
        write_events(paths, "killed", 1, rank, ("start", 100.0), ("phase", 100.2), phase="train", step=0)
    assert killer.due() == pytest.approx(100.2 + EARLY / 2)


def test_no_second_kill_in_an_attempt(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    for rank in (0, 1):
        write_events(paths, "killed", 1, rank, ("start", 1.0))
    paths.kills("killed").write_text(json.dumps([{"attempt": 1, "ranks": [], "at": 2.0, "hit": False}]))
    killer = Killer(paths, "killed", 1, ranks=2, plan=PLAN, course=COURSE)
    assert not killer.pending
    assert killer.due() is None
    assert not killer.killed
    assert Killer(paths, "killed", 2, ranks=2, plan=PLAN, course=COURSE).pending


def test_unfinished_kill_is_confirmed_by_signals(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.kills("killed").parent.mkdir(parents=True)
    paths.kills("killed").write_text(json.dumps([{"attempt": 1, "ranks": [0, 1], "at": 2.0, "hit": False}]))
    killer = Killer(paths, "killed", 1, ranks=2, plan=PLAN, course=COURSE)
    killer.confirm({0: None, 1: None})
    before = killer.killed
    killer.confirm({0: 9, 1: 9})
    assert (before, killer.killed) == (False, True)
    assert load_kills(paths.kills("killed"))[0] == Kill(attempt=1, ranks=[0, 1], at=2.0, hit=True)


def test_list_comes_back_as_written(tmp_path: Path) -> None:
    crumbs = {"0": Whereabouts(phase="train", step=3)}
    kills = [Kill(attempt=1, ranks=[0, 1], at=2.5, hit=True, crumbs=crumbs), Kill(attempt=2, ranks=[], at=3, hit=False)]
    assert load_kills(tmp_path / "kills.json") == []
    save_kills(tmp_path / "kills.json", kills)
    assert load_kills(tmp_path / "kills.json") == kills
    (tmp_path / "kills.json").write_text('[{"attempt": 1}]')
    with pytest.raises(ValidationError, match="ranks"):
        load_kills(tmp_path / "kills.json")


def test_later_kill_counts_from_the_checkpoint(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    first = {"attempt": 1, "ranks": [0, 1], "at": 2.0, "hit": True}
    for rank in (0, 1):
        write_events(paths, "killed", 2, rank, ("start", 50.0), ("phase", 60.0), phase="train", step=10)
    paths.kills("killed").write_text(json.dumps([first]))
    killer = Killer(paths, "killed", 2, ranks=2, plan=PLAN, course=COURSE)
    assert COURSE.position(10) == 4.0
    assert killer.due() == pytest.approx(60.0 + max(0.0, draw_moments(PLAN, 10.0)[1] - 4.0))


def test_kill_is_not_missed_by_a_fast_attempt(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    for rank in (0, 1):
        write_events(paths, "killed", 1, rank, ("start", 9e9), ("progress", 9e9), done=30, total=40)
    killer = Killer(paths, "killed", 1, ranks=2, plan=PLAN, course=COURSE)
    assert (killer.due() or 0) > 8e9
    for rank in (0, 1):
        write_events(paths, "killed", 1, rank, ("start", 9e9), ("progress", 9e9), done=39, total=40)
    assert killer.due() == pytest.approx(time.time(), abs=5)


def test_course_is_from_last_start_to_first_end(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    known = {"phase": "train", "step": 0, "done": 3, "total": 40}
    write_events(paths, "calm", 1, 0, ("start", 10.0), ("phase", 13.0), ("progress", 20.0), ("end", 25.0), **known)
    write_events(paths, "calm", 1, 1, ("start", 12.0), ("phase", 14.0), ("progress", 20.0), ("end", 24.0), **known)
    with pytest.raises(FileNotFoundError, match="calm has not ended"):
        course_of(paths, "calm", 2)
    paths.attempt("calm", 1).exit.write_text(json.dumps({"started_at": 1.0, "finished_at": 31.0}))
    assert course_of(paths, "calm", 2) == Course(setting_up=2.0, working=10.0, updates=40)
    assert course_of(paths, "calm", 3).duration == 30.0
