"""Steps of optimizers, schedulers and scalers in traced ranks: what is wrong is named, its right twin passes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.traced import Ranks, findings, ranks

pytestmark = pytest.mark.torchrun
WRONG = {
    "scheduler_steps": {"scheduler_steps"},
    "loss_scales_differ": {"loss_scales_differ", "gradients_differ", "parameters_differ"},
}
RIGHT = ("scheduler_steps_mended", "loss_scales_differ_mended", "empty_step_mended")


@pytest.fixture(scope="module")
def server() -> Iterator[Ranks]:
    with ranks() as started:
        yield started


@pytest.mark.parametrize("case", WRONG)
def test_mistake_is_named(server: Ranks, case: str, tmp_path: Path) -> None:
    result = server.judged("stepping", case, folder=tmp_path / "trace")
    assert (result.verdict, findings(result, "wrong")) == ("fail", WRONG[case])


@pytest.mark.parametrize("case", RIGHT)
def test_right_twin_passes(server: Ranks, case: str, tmp_path: Path) -> None:
    result = server.judged("stepping", case, folder=tmp_path / "trace")
    assert (result.verdict, findings(result)) == ("pass", set())


def test_step_without_anything_to_learn_from_is_a_note(server: Ranks, tmp_path: Path) -> None:
    """E4: the optimizer steps on gradients of 0, on all ranks alike; the twin that skips the step has no note."""
    result = server.judged("stepping", "empty_step", folder=tmp_path / "trace")
    assert (result.verdict, findings(result)) == ("pass", {"empty_step"})
    noted = next(item for item in result.summary["findings"] if item["name"] == "empty_step")
    assert noted["measured"] == {"steps": [3]}
    assert "momentum and weight decay" in noted["detail"]


def test_scheduler_steps_are_counted(server: Ranks, tmp_path: Path) -> None:
    """B10: 4 micro-batches, 2 ranks, 4 optimizer steps; 16 if stepped per micro-batch, 8 if once per rank."""
    inside = server.judged("stepping", "scheduler_steps", folder=tmp_path / "inside")
    per_rank = server.judged("stepping", "scheduler_steps_per_rank", folder=tmp_path / "per_rank")
    found = [
        item["measured"]["scheduler_steps"]
        for result in (inside, per_rank)
        for item in result.summary["findings"]
        if item["name"] == "scheduler_steps"
    ]
    assert found == [16, 8]
    assert (per_rank.verdict, findings(per_rank)) == ("pass", findings(per_rank, "note"))


def test_scales_of_ranks_are_compared_from_the_first_step_on(server: Ranks, tmp_path: Path) -> None:
    """B7: the scaler of rank 1 grows after the first step."""
    result = server.judged("stepping", "loss_scales_differ", folder=tmp_path / "trace")
    named = next(item for item in result.summary["findings"] if item["name"] == "loss_scales_differ")
    assert named["measured"] == {"step": 2, "scales": [4.0, 8.0]}


def test_buffers_that_differ_before_an_evaluation_are_listed(server: Ranks, tmp_path: Path) -> None:
    """B9: the checkpoint holds rank 0's buffers; the right twins without BatchNorm are those of language.py."""
    result = server.judged("images", "right", folder=tmp_path / "trace")
    noted = next(item for item in result.summary["findings"] if item["name"] == "buffers_differ")
    assert "running_" in noted["detail"]
    whole = server.judged("language", "right_mean", folder=tmp_path / "whole")
    assert "buffers_differ" not in findings(whole)
