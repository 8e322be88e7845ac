"""Shapes of answers that put checks of several runs beside each other: comparisons and trends."""

from typing import Any

from pydantic import BaseModel, Field

from trainer.contract.result import Number, Relation


class JudgedNumber(BaseModel):
    """What a check measured, and what it had to be."""

    passed: bool | None = Field(description="null: could not be judged.")
    measured: Number
    limit: Number
    relation: Relation = Field(description="How measured is held against limit: at most, equal, at least.")
    strict: bool = Field(description="The limit itself does not suffice: below it, or above it.")


class ComparedCheck(JudgedNumber):
    """A check of one run."""

    unit: str


class ComparedChecks(BaseModel):
    """A check of several runs."""

    name: str
    title: str
    values: list[ComparedCheck | None] = Field(description="One per run; null where a run has no such check.")
    differs: bool


class ComparedValues(BaseModel):
    """A parameter, or a number of the summary, of several runs."""

    name: str
    values: list[Any]
    differs: bool


class Comparison(BaseModel):
    """Runs side by side."""

    ids: list[int]
    runs: list[dict[str, Any]]
    params: list[ComparedValues]
    checks: list[ComparedChecks]
    summary: list[ComparedValues]
    metrics: list[dict[str, Any]]


class TrendItem(JudgedNumber):
    """One run in a trend."""

    run_id: int
    name: str
    preset: str | None
    verdict: str | None
    finished_at: str | None
    margin: float | None = Field(description="measured / limit, the share used of a limit; only for at_most.")
    difference: float | None = Field(description="measured - limit.")


class Trend(BaseModel):
    """One check over the newest runs of a kind, oldest first."""

    kind: str
    check: str
    title: str
    relation: Relation = Field(description="Of the newest run, as are title, unit and strict.")
    strict: bool
    unit: str
    total: int = Field(description="Runs with this check.")
    items: list[TrendItem]


class TrendCheck(BaseModel):
    """A check that runs of a kind have."""

    check: str
    runs: int
    title: str


class TrendChecks(BaseModel):
    """What there are trends of: the answer when no check is named."""

    kind: str
    checks: list[TrendCheck]
