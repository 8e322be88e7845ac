"""Parameters of the kind: the recipe's figures follow from them, and invalid combinations are refused with numbers."""

from typing import Any

import pytest

from trainer.contract.kinds import resolve_params
from trainer.contract.params import ParamsRefused
from trainer.kinds.cifar.params import KIND, CifarParams
from trainer.kinds.cifar.window import nearest_divisors, nearest_multiples, window_refusal


def resolved(preset: str | None = None, **given: Any) -> CifarParams:
    params = resolve_params(KIND, preset, given)
    assert isinstance(params, CifarParams)
    return params


def refusal(preset: str | None = None, **given: Any) -> tuple[str, str]:
    with pytest.raises(ParamsRefused) as caught:
        resolve_params(KIND, preset, given)
    (problem,) = caught.value.problems
    return problem.field, problem.message


def test_full_recipe_gives_its_figures() -> None:
    params = resolved("full")
    assert params.data == "cifar10"
    assert (params.samples_per_rank, params.micro_batches, params.steps_per_epoch) == (20_000, 400, 100)
    assert (params.syncs_per_epoch("every"), params.syncs_per_epoch("no_sync")) == (400, 100)
    assert (params.epochs, params.learning_rate, params.weight_decay, params.seed) == (5, 3e-3, 1e-4, 47)


def test_quick_keeps_the_ratio() -> None:
    params = resolved()
    assert (params.data, params.modes) == ("synthetic", ("every", "no_sync"))
    assert params.syncs_per_epoch("every") == 4 * params.syncs_per_epoch("no_sync") > 0


@pytest.mark.parametrize("world_size", [2, 3, 4, 6, 8])
def test_quick_fits_several_world_sizes(world_size: int) -> None:
    assert resolved(world_size=world_size).steps_per_epoch > 1


def test_stages_follow_the_mode() -> None:
    assert [stage.name for stage in KIND.stages(resolved())] == ["prepare", "train-every", "train-no-sync", "audit"]
    single = KIND.stages(resolved(mode="no_sync"))
    assert [(stage.name, stage.launcher) for stage in single] == [
        ("prepare", "python"),
        ("train-no-sync", "torchrun"),
        ("audit", "python"),
    ]


def test_indivisible_window_names_neighbours() -> None:
    field, message = refusal("full", accum_steps=3)
    assert field == "accum_steps"
    assert "does not divide the 400 micro-batches" in message
    assert "nearest accum_steps that work: 2 or 4; or train_size 39900 or 40200" in message


def test_short_micro_batch_names_neighbours() -> None:
    field, message = refusal("full", world_size=3)
    assert field == "train_size"
    assert "50 x world_size 3 = 150" in message
    assert "39600 or 40200" in message


def test_split_smaller_than_window_refused() -> None:
    field, message = refusal(train_size=79, batch_size=10)
    assert field == "train_size"
    assert "= 80; use at least 80 images" in message


@pytest.mark.parametrize("size", [39_600, 40_200])
def test_named_neighbours_really_work(size: int) -> None:
    assert window_refusal(train_size=size, batch_size=50, world_size=3, accum_steps=4) is None


def test_neighbours_by_hand() -> None:
    assert nearest_multiples(10, 4) == [8, 12]
    assert nearest_multiples(3, 4) == [4]
    assert nearest_divisors(12, 5) == [4, 6]
    assert nearest_divisors(7, 3) == [1, 7]


@pytest.mark.parametrize(
    "name", ["", "imagenet", "folder:", "folder:..", "folder:../up", "folder:a/b", "folder:.hidden", "synthetic\n"]
)
def test_strange_sources_refused(name: str) -> None:
    field, message = refusal(data=name)
    assert field == "data"
    assert "use synthetic, cifar10 or folder:<name>" in message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "sometimes"),
        ("epochs", 0),
        ("batch_size", "50"),
        ("bucket_cap_mb", 0),
        ("learning_rate", float("nan")),
        ("precision", "fp16"),
        ("world_size", 1),
    ],
)
def test_out_of_range_names_field(field: str, value: Any) -> None:
    assert refusal(**{field: value})[0] == field
