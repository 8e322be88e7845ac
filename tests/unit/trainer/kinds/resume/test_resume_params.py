"""Parameters, presets and planned stages of the kind `resume`."""

from typing import Any

import pytest

from trainer.contract.kinds import resolve_params
from trainer.contract.params import ParamsRefused
from trainer.kinds.resume.params import KIND


def plan(preset: str, **given: Any) -> list[str]:
    return [stage.name for stage in KIND.stages(resolve_params(KIND, preset, given))]


def test_every_trajectory_has_own_stage() -> None:
    twins = ["twin-rng", "twin-sampler", "twin-optimizer"]
    assert plan("quick") == ["interrupted", "continuous", "resumed", "control", *twins, "compare"]
    assert plan("kill") == ["continuous", "killed", "control", *twins, "compare"]


def test_presets_have_their_figures() -> None:
    quick, full, kill = (resolve_params(KIND, name, {}).model_dump() for name in ("quick", "full", "kill"))
    assert (quick["updates"], quick["stop_step"]) == (20, 10)
    assert (full["updates"], full["stop_step"], full["kills"]) == (100, 50, 0)
    assert (kill["updates"], kill["save_every"], kill["kills"]) == (40, 5, 4)


def test_kills_are_planned_outside() -> None:
    params = resolve_params(KIND, "kill", {"seed": 5})
    plans = {stage.name: stage.kills for stage in KIND.stages(params) if stage.kills is not None}
    assert list(plans) == ["killed"]
    killed = plans["killed"]
    assert killed is not None
    assert (killed.count, killed.seed, killed.after_stage) == (4, 5, "continuous")


@pytest.mark.parametrize(
    ("given", "field", "text"),
    [
        ({"stop_step": 0}, "stop_step", "at least 1"),
        ({"stop_step": 20}, "stop_step", r"20 is outside 1\.\.19"),
        ({"stop_step": 21}, "stop_step", r"21 is outside 1\.\.19"),
        ({"updates": 1}, "updates", "at least 2"),
        ({"accumulation": 3, "batch_size_per_rank": 200}, "batch_size_per_rank", "3 x 200 = 600.*at most 170 work"),
        ({"kills": -1}, "kills", "at least 0"),
        ({"kils": 1}, "kils", "unknown parameter"),
        ({"variant": "no"}, "variant", "default_buckets"),
    ],
)
def test_refusals_name_the_field(given: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(ParamsRefused, match=text) as caught:
        resolve_params(KIND, "quick", given)
    assert [problem.field for problem in caught.value.problems] == [field]


def test_limits_that_just_fit() -> None:
    for given in ({"stop_step": 1}, {"stop_step": 19}, {"accumulation": 2, "batch_size_per_rank": 256}):
        resolve_params(KIND, "quick", given)
