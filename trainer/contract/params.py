"""Parameters shared by all kinds, and how invalid parameters are reported."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainer.contract.targets import TargetEntry, built_in

MAX_IMAGE_PIXELS: Final = 20_000_000
"""Of a picture to learn from and of one to classify, unless the operator sets another limit."""


class CommonParams(BaseModel):
    """Base of every kind's parameters: strict types, unknown names are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    device: Literal["auto", "cuda", "cpu"] = Field(
        "auto",
        title="Device",
        description="auto: NCCL if there is a GPU per rank, else CPU with gloo. cuda: NCCL, else refused. cpu: gloo.",
    )
    share_gpu: bool = Field(
        False, title="Share a GPU", description="Let several ranks use one GPU over gloo; the result says so."
    )
    world_size: int = Field(2, ge=2, le=64, title="Ranks", description="Processes that train together.")
    seed: int = Field(47, ge=0, le=2**31 - 1, title="Seed", description="All random draws depend on it.")
    save_every: int = Field(
        0,
        ge=0,
        le=1_000_000,
        title="Save every",
        description="Updates between checkpoints; 0 saves only at the end.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldProblem:
    """One problem with a parameter."""

    field: str
    """Name of the parameter."""
    message: str
    """The problem, with the numbers, and what would work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightContext:
    """What a kind may use for checks before a run is recorded."""

    datasets_dir: Path
    targets: Callable[[], Sequence[TargetEntry]] = built_in
    """Registered targets; the call may wait until they have been listed."""
    max_image_pixels: int = MAX_IMAGE_PIXELS
    """Larger pictures are refused."""


class ParamsRefused(ValueError):
    """The parameters cannot work; `problems` names each field."""

    def __init__(self, problems: list[FieldProblem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{problem.field}: {problem.message}" for problem in problems))
