"""`diagnosis` of `result.json`: which mistake explains a gradient that is not the objective's own."""

from typing import Any, Literal

from pydantic import Field

from trainer.contract.strict import Number, Strict


class Cause(Strict):
    """One mistake that explains the measured numbers."""

    name: str
    explanation: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class Weights(Strict):
    """Weight of one unit per rank and micro-batch; null where a micro-batch holds none, or no weight was found."""

    observed: list[list[Number]]
    """observed[rank][micro_batch] in the gradient of `rank` where ranks differ, else in that of every rank."""
    expected: list[list[Number]]


class Diagnosis(Strict):
    """Which mistake explains a gradient that is not the objective's own."""

    status: Literal["clean", "identified", "ambiguous", "unexplained"]
    causes: list[Cause]
    """With `ambiguous`, those of the first alternative."""
    alternatives: list[list[str]] = Field(default_factory=list)
    """With `ambiguous`, sets of names that give the same weights, the first one included."""
    weights: Weights | None
    residual: Number
    """Share of the gradient that no weighting of the window explains, between 0 and 1; null if nothing was solved."""
    suggestion: str
    reasoning: list[str] = Field(default_factory=list)
    """The line of thinking, one sentence per step."""
    ruled_out: list[str] = Field(default_factory=list)
    """What the numbers exclude, and why."""
