"""Kills on purpose: they hit living ranks in their training, count only then, and the stage goes on after each."""

import json
from pathlib import Path

import pytest

from tests.support.worker_lab import open_lab
from trainer.contract.kinds import KillPlan
from trainer.contract.paths import RunPaths
from worker.killer import LATEST_SHARE, Kill, Killer, draw_moments, kills_path, load_kills, training_seconds

PLAN = KillPlan(count=4, seed=47, after_stage="calm")


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
        kills = json.loads(kills_path(lab.paths(run_id), "killed").read_text())
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


def write_events(paths: RunPaths, stage: str, attempt: int, rank: int, *events: tuple[str, float]) -> None:
    path = paths.attempt(stage, attempt).events(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"type": kind, "t": at}) + "\n" for kind, at in events))


def test_kill_waits_for_every_start(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    killer = Killer(paths, "killed", 1, ranks=2, plan=PLAN, duration=10.0)
    write_events(paths, "killed", 1, 0, ("start", 100.0))
    assert killer.due() is None
    write_events(paths, "killed", 1, 1, ("start", 103.0))
    assert killer.due() == 103.0 + draw_moments(PLAN, 10.0)[0]


def test_no_second_kill_in_an_attempt(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    for rank in (0, 1):
        write_events(paths, "killed", 1, rank, ("start", 1.0))
    kills_path(paths, "killed").write_text(json.dumps([{"attempt": 1, "ranks": [], "at": 2.0, "hit": False}]))
    killer = Killer(paths, "killed", 1, ranks=2, plan=PLAN, duration=10.0)
    assert not killer.pending
    assert killer.due() is None
    assert not killer.killed
    assert Killer(paths, "killed", 2, ranks=2, plan=PLAN, duration=10.0).pending


def test_unfinished_kill_is_confirmed_by_signals(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    kills_path(paths, "killed").parent.mkdir(parents=True)
    kills_path(paths, "killed").write_text(json.dumps([{"attempt": 1, "ranks": [0, 1], "at": 2.0, "hit": False}]))
    killer = Killer(paths, "killed", 1, ranks=2, plan=PLAN, duration=10.0)
    killer.confirm({0: None, 1: None})
    assert not killer.killed
    killer.confirm({0: 9, 1: 9})
    assert killer.killed
    assert load_kills(kills_path(paths, "killed"))[0] == Kill(attempt=1, ranks=[0, 1], at=2.0, hit=True)


def test_duration_is_from_last_start_to_first_end(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write_events(paths, "calm", 1, 0, ("start", 10.0), ("end", 25.0))
    write_events(paths, "calm", 1, 1, ("start", 12.0), ("end", 24.0))
    with pytest.raises(FileNotFoundError, match="calm has not ended"):
        training_seconds(paths, "calm", 2)
    paths.attempt("calm", 1).exit.write_text(json.dumps({"started_at": 1.0, "finished_at": 31.0}))
    assert training_seconds(paths, "calm", 2) == 12.0
    assert training_seconds(paths, "calm", 3) == 30.0
