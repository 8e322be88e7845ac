"""Kills, combined from the worker's list and the next attempt's events."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from trainer.contract.paths import RunPaths
from trainer.kinds.resume.kills import read_recoveries


def crumb(phase: str, step: int) -> dict[str, Any]:
    return {"phase": phase, "step": step}


def write(paths: RunPaths, kills: list[dict[str, Any]], starts: dict[int, int]) -> None:
    paths.stage("killed").mkdir(parents=True)
    paths.kills("killed").write_text(json.dumps(kills))
    for attempt, step in starts.items():
        events = paths.attempt("killed", attempt).events(0)
        events.parent.mkdir(parents=True)
        lines = [{"type": "phase", "phase": "rendezvous", "step": 0}, {"type": "phase", "phase": "train", "step": step}]
        events.write_text("\n".join(map(json.dumps, lines)) + '\n{"type": "ph')


def kill(
    attempt: int, first: dict[str, Any] | None, second: dict[str, Any] | None, *, hit: bool = True
) -> dict[str, Any]:
    crumbs = {str(rank): found for rank, found in enumerate((first, second)) if found is not None}
    return {"attempt": attempt, "ranks": [0, 1], "at": 1.0, "hit": hit, "crumbs": crumbs}


def test_each_hit_with_its_return(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    kills = [
        kill(1, crumb("backward", 7), crumb("backward", 7)),
        kill(2, crumb("save", 10), crumb("train", 10)),
        kill(3, crumb("end", 12), None, hit=False),
        kill(3, crumb("forward", 3), None),
    ]
    write(paths, kills, {2: 5, 3: 0})
    assert [item.summary() for item in read_recoveries(paths)] == [
        {"step": 7, "phase": "backward", "checkpoint_step": 5, "steps_repeated": 2},
        {"step": 10, "phase": "save / train", "checkpoint_step": 0, "steps_repeated": 10},
        {"step": 3, "phase": "forward", "checkpoint_step": None, "steps_repeated": None},
    ]


def test_killed_before_training_began(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write(paths, [kill(2, crumb("rendezvous", 0), crumb("start", 0))], {3: 5})
    assert [item.summary() for item in read_recoveries(paths)] == [
        {"step": 5, "phase": "rendezvous / start", "checkpoint_step": 5, "steps_repeated": 0}
    ]


def test_ranks_are_in_order_of_their_numbers(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    entry = kill(1, None, None)
    entry["crumbs"] = {"10": crumb("save", 4), "9": crumb("train", 4)}
    write(paths, [entry], {})
    assert read_recoveries(paths)[0].phase == "train / save"


def test_nobody_killed(tmp_path: Path) -> None:
    assert read_recoveries(RunPaths(tmp_path)) == []


@pytest.mark.parametrize("lacking", ["hit", "ranks", "attempt"])
def test_list_of_another_make(tmp_path: Path, lacking: str) -> None:
    entry = kill(1, crumb("backward", 1), None)
    del entry[lacking]
    write(RunPaths(tmp_path), [entry], {})
    with pytest.raises(ValidationError, match=lacking):
        read_recoveries(RunPaths(tmp_path))
