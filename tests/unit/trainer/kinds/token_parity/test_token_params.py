"""Parameters of token-parity: presets, and refusals that name the field and the numbers."""

from typing import Any

import pytest

from trainer.contract.kinds import resolve_params
from trainer.contract.params import ParamsRefused
from trainer.kinds.token_parity.params import KIND


def test_presets_resolve_completely() -> None:
    assert resolve_params(KIND, None, {}) == resolve_params(KIND, "quick", {})
    full = resolve_params(KIND, "full", {}).model_dump()
    assert (full["updates"], full["accumulation"], full["batch_size_per_rank"]) == (100, 2, 8)
    assert (full["atol"], full["rtol"], full["learning_rate"]) == (1e-6, 1e-4, 0.1)


def test_training_needs_more_than_one_update() -> None:
    names = [[stage.name for stage in KIND.stages(resolve_params(KIND, preset, {}))] for preset in ("quick", "full")]
    assert names[0] == ["prepare", "check-loss", "reference", "distributed", "compare"]
    assert names[1] == ["prepare", "check-loss", "reference", "distributed", "train", "compare"]


@pytest.mark.parametrize(
    ("given", "field", "told"),
    [
        ({"world_size": 1}, "world_size", "at least 2"),
        ({"updates": 0}, "updates", "at least 1"),
        ({"updates": "ten"}, "updates", "whole number"),
        ({"atol": -1e-9}, "atol", "at least 0"),
        ({"learning_rate": float("nan")}, "learning_rate", "finite"),
        ({"variant": "magic"}, "variant", "mean_of_means"),
        ({"variant": "dropped_microbatch", "accumulation": 1}, "variant", "several micro-batches"),
        ({"device": "tpu"}, "device", "'auto', 'cuda' or 'cpu'"),
        ({"speed": 3}, "speed", "unknown parameter"),
        (
            {"accumulation": 3, "batch_size_per_rank": 171},
            "batch_size_per_rank",
            "513 different sequences.* at most 170",
        ),
    ],
)
def test_refusal_names_the_field(given: dict[str, Any], field: str, told: str) -> None:
    with pytest.raises(ParamsRefused, match=told) as refusal:
        resolve_params(KIND, "quick", given)
    assert [problem.field for problem in refusal.value.problems] == [field]


def test_window_may_use_the_whole_pool() -> None:
    params = resolve_params(KIND, "quick", {"accumulation": 4, "batch_size_per_rank": 128})
    assert params.model_dump()["batch_size_per_rank"] == 128
