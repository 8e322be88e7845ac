"""Checkpoints with ranks that differ or disagree: two real ranks, all cases in one start."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.stages import LocalRun
from trainer.contract.kinds import StagePlan

pytestmark = pytest.mark.torchrun


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the observations of both ranks, by case."""
    run = LocalRun.create(tmp_path_factory.mktemp("ranks") / "1", "resume", "quick")
    stage = StagePlan(name="lab", title="", entry="tests.support.ranks_lab:run", launcher="torchrun")
    run = replace(run, plan=[stage])
    run.stage("lab")
    return [json.loads(Path(run.paths.work / f"ranks-{rank}.json").read_text()) for rank in range(2)]


def test_each_rank_draws_on(found: list[dict[str, Any]]) -> None:
    case = [rank["uneven_draws"] for rank in found]
    assert [rank["right"] for rank in case] == [rank["expected"] for rank in case]
    assert [rank["sampler"] for rank in case] == [0, 1]
    # One rank's state on all: invisible on rank 0, wrong on rank 1.
    assert case[0]["wrong"] == case[0]["expected"]
    assert case[1]["wrong"] != case[1]["expected"]


def test_batch_statistics_stay_own(found: list[dict[str, Any]]) -> None:
    case = [rank["own_buffers"] for rank in found]
    assert case[0]["mean"] != case[1]["mean"]
    assert [rank["restored"] for rank in case] == [rank["mean"] for rank in case]
    assert [rank["shared"] for rank in case] == [case[0]["mean"]] * 2


def test_late_writer_is_waited_for(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["late_writer"] == {"files": ["manifest.json", "rank0.pt", "rank1.pt", "shared.pt"], "step": 1}


def test_full_disk_on_one_rank(found: list[dict[str, Any]]) -> None:
    case = [rank["full_disk"] for rank in found]
    assert case[0] == case[1]
    assert case[0]["outcome"].startswith("CheckpointNotSaved: rank 1: No space left on device")
    assert (case[0]["left"], case[0]["step"]) == (["step-0001"], 1)


def test_blind_rank_stops_all(found: list[dict[str, Any]]) -> None:
    assert [rank["blind_rank"] for rank in found] == ["CheckpointDamaged: rank 1: step-0001: shared.pt is missing"] * 2


def test_swapped_rank_files_are_refused(found: list[dict[str, Any]]) -> None:
    text = "no valid checkpoint is left in swapped: step-0001: rank0.pt has the content of rank1.pt"
    assert [rank["other_file"] for rank in found] == [f"CheckpointDamaged: {text}"] * 2


def test_file_of_an_older_step_is_refused_by_all(found: list[dict[str, Any]]) -> None:
    problem = "step-0002: rank1.pt is of step 1, manifest.json is of step 2"
    assert [rank["older_file"]["path"] for rank in found] == [f"CheckpointDamaged: rank 1: {problem}"] * 2
    text = f"CheckpointDamaged: no valid checkpoint is left in older: {problem}"
    assert [rank["older_file"]["newest"] for rank in found] == [text] * 2


def test_state_of_another_type_is_refused_by_all(found: list[dict[str, Any]]) -> None:
    tensor = "optimizer.norm.weight.momentum_buffer: float32 when it was saved, bfloat16 in the file"
    text = f"CheckpointRefused: rank 0: step-0001: shared.pt: {tensor}"
    assert [rank["narrow_file"] for rank in found] == [text] * 2


def test_lost_rank_file_is_skipped(found: list[dict[str, Any]]) -> None:
    case = [rank["lost_file"] for rank in found]
    assert [rank["step"] for rank in case] == [1, 1]
    assert case[0]["none"] == case[1]["none"]
    assert "no valid checkpoint is left in lost: step-0002: rank1.pt is missing" in case[0]["none"]
