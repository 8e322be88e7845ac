"""Errors of values state the requirement and the given value, in the same words everywhere."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from trainer.contract.kinds import kinds, resolve_params
from trainer.contract.params import ParamsRefused
from trainer.contract.wording import fault


class Sample(BaseModel):
    model_config = ConfigDict(extra="forbid")

    count: int = Field(2, ge=1, le=9)
    rate: float = Field(0.5, gt=0, allow_inf_nan=False)
    mode: Literal["a", "b", "c"] = "a"
    flag: bool = False
    name: str = Field("", max_length=3)
    tags: Annotated[list[str], Field(max_length=1)] = []

    @field_validator("name")
    @classmethod
    def _no_x(cls, name: str) -> str:
        if name == "x":
            raise ValueError("x should not be here")
        return name


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"count": 0}, "must be at least 1, given 0"),
        ({"count": 10}, "must be at most 9, given 10"),
        ({"count": "ten"}, "must be a whole number, given 'ten'"),
        ({"count": 1.5}, "must be a whole number, given 1.5"),
        ({"rate": 0}, "must be above 0.0, given 0"),
        ({"rate": float("nan")}, "must be a finite number, given nan"),
        ({"mode": "d"}, "must be 'a', 'b' or 'c', given 'd'"),
        ({"flag": "maybe"}, "must be true or false, given 'maybe'"),
        ({"name": 7}, "must be text, given 7"),
        ({"name": "long"}, "must have at most 3 characters, given 'long'"),
        ({"name": "x"}, "x should not be here"),
        ({"tags": "a"}, "must be a list, given 'a'"),
        ({"tags": ["a", "b"]}, "must have at most 1 item after validation, not 2"),
        ({"other": 1}, "is unknown"),
        ({"name": "l" * 99}, "must have at most 3 characters"),
    ],
)
def test_fault_says_need_and_value(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Sample.model_validate(given)
    (item,) = caught.value.errors()
    assert fault(item) == told
    assert "given" not in fault(item, tell_value=False)


def test_mistyped_parameter_is_guessed() -> None:
    kind = kinds()["token-parity"]
    with pytest.raises(ParamsRefused, match="did you mean variant\\? token-parity knows device"):
        resolve_params(kind, None, {"varient": "correct"})
    with pytest.raises(ParamsRefused, match="unknown parameter; token-parity knows device"):
        resolve_params(kind, None, {"zzz": 1})
