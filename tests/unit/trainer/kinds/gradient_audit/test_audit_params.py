"""Parameters of a gradient audit: tolerances follow the type unless they are given, and only names are targets."""

import pytest

from trainer.contract.kinds import kinds, resolve_params
from trainer.contract.params import ParamsRefused

KIND = kinds()["gradient-audit"]


@pytest.mark.parametrize(
    ("given", "tolerances"),
    [
        ({}, (1e-6, 1e-4)),
        ({"dtype": "float64"}, (1e-12, 1e-10)),
        ({"dtype": "float64", "rtol": 1e-6}, (1e-12, 1e-6)),
        ({"atol": 0.0}, (0.0, 1e-4)),
    ],
)
def test_tolerances_follow_the_type(given: dict[str, object], tolerances: tuple[float, float]) -> None:
    params = resolve_params(KIND, None, given).model_dump()
    assert (params["atol"], params["rtol"]) == tolerances


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"dtype": "bfloat16"}, "dtype"),
        ({"steps": 0}, "steps"),
        ({"target": "a.b:C"}, "target"),
        ({"target": "../x"}, "target"),
        ({"save_every": 1}, "save_every"),
        ({"world_size": 1}, "world_size"),
    ],
)
def test_refusal_names_the_field(given: dict[str, object], field: str) -> None:
    with pytest.raises(ParamsRefused) as refused:
        resolve_params(KIND, None, given)
    assert [problem.field for problem in refused.value.problems] == [field]


def test_four_stages_two_of_them_on_all_ranks() -> None:
    stages = KIND.stages(resolve_params(KIND, None, {}))
    assert [(stage.name, stage.launcher) for stage in stages] == [
        ("inspect", "torchrun"),
        ("reference", "python"),
        ("audit", "torchrun"),
        ("compare", "python"),
    ]
