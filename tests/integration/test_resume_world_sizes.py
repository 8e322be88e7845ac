"""Resuming at two, three and four ranks, repeatedly, and faults that break it."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.stages import LocalRun
from trainer.contract.kinds import StagePlan
from trainer.kinds.resume.diagnosis import diagnose
from trainer.kinds.resume.differences import compare
from trainer.kinds.resume.evidence import Evidence

pytestmark = pytest.mark.torchrun
UPDATES, STOP = 6, 3
WORLD_SIZES = (2, 3, 4)


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], LocalRun]:
    """Return runs by world size whose `work` folder holds every trajectory."""
    return cache(lambda world_size: train_all(tmp_path_factory.mktemp(f"world{world_size}") / "1", world_size))


def train_all(root: Path, world_size: int) -> LocalRun:
    size: dict[str, Any] = {"accumulation": 1, "batch_size_per_rank": 2, "updates": UPDATES, "stop_step": STOP}
    run = LocalRun.create(root, "resume", "quick", world_size=world_size, **size)
    stage = StagePlan(name="lab", title="", entry="tests.support.resume_lab:run", launcher="torchrun")
    run = replace(run, plan=[stage])
    run.stage("lab")
    return run


def evidence(lab: LocalRun, name: str, variant: str = "correct") -> Evidence:
    return Evidence.read(name, Path(lab.paths.work / variant / name), UPDATES)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_uninterrupted_runs_agree(labs: Callable[[int], LocalRun], world_size: int) -> None:
    for variant in ("correct", "default_buckets"):
        left = evidence(labs(world_size), "continuous", variant)
        assert compare(left, evidence(labs(world_size), "control", variant)).same


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_resumed_equals_uninterrupted(labs: Callable[[int], LocalRun], world_size: int) -> None:
    lab = labs(world_size)
    assert compare(evidence(lab, "continuous"), evidence(lab, "resumed")).same


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_default_buckets_are_diagnosed(labs: Callable[[int], LocalRun], world_size: int) -> None:
    lab = labs(world_size)
    left, right = evidence(lab, "continuous", "default_buckets"), evidence(lab, "resumed", "default_buckets")
    layouts = [side.ranks[0]["sampler"]["layouts"] for side in (left, right)]
    assert (
        layouts[0][STOP] != layouts[1][STOP]
    )  # a new process begins with a different layout than the old one ended with
    found = compare(left, right)
    if world_size == 2:
        assert found.same  # a sum of two terms has one order only
        return
    assert not found.same
    assert diagnose(left, right).name == "bucket layout"


@pytest.mark.parametrize(("name", "starts"), [("third", [0, 3, 5]), ("fourth", [0, 3, 5, 6])])
def test_resumed_again_and_at_end(labs: Callable[[int], LocalRun], name: str, starts: list[int]) -> None:
    found = evidence(labs(3), name)
    assert compare(evidence(labs(3), "continuous"), found).same
    assert [start["step"] for start in found.ranks[1]["sampler"]["starts"]] == starts


def test_evaluation_leaves_training_alone(labs: Callable[[int], LocalRun]) -> None:
    lab = labs(2)
    assert compare(evidence(lab, "continuous"), evidence(lab, "evaluated")).same
    drawing = compare(evidence(lab, "continuous"), evidence(lab, "drawing"))
    assert drawing.rng[0] == ["torch"]
    assert not drawing.same
