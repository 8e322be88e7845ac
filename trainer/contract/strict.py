"""Base of the models of `result.json`, and how their numbers are written."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Number = float | int | Literal["NaN", "Infinity", "-Infinity"] | None


class Strict(BaseModel):
    """Base of every part of a result: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
