"""`result.json`: checks, panels and the verdict that follows from the checks."""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainer.contract.diagnosis import Diagnosis
from trainer.contract.events import decode_number, encodable
from trainer.contract.files import write_json_atomically
from trainer.contract.strict import Number, Strict

SCHEMA_VERSION = 1


class Verdict(StrEnum):
    """The result of the audit; only a succeeded run has one."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class Relation(StrEnum):
    """How the measured number of a check is compared with its limit."""

    AT_MOST = "at_most"
    EQUAL = "equal"
    AT_LEAST = "at_least"


class Check(Strict):
    """One statement that is judged."""

    name: str
    title: str
    passed: bool | None
    """None: could not be judged."""
    measured: Number = None
    limit: Number = None
    relation: Relation = Relation.AT_MOST
    """Read as at_most if it is not given, as in results of earlier versions."""
    strict: bool = False
    """The limit itself does not pass: the measured number must be below it, or exceed it."""
    unit: str = ""
    detail: str = ""

    @property
    def fits(self) -> bool | None:
        """Whether the numbers satisfy the relation; None if one is missing or NaN."""
        return fits(self.measured, self.limit, self.relation, strict=self.strict)

    @model_validator(mode="after")
    def _passed_fits_numbers(self) -> "Check":
        if self.strict and self.relation is Relation.EQUAL:
            raise ValueError("strict makes no sense with relation equal; use at_most or at_least")
        # A check may fail although its numbers fit, for the reason in its detail; it never passes against them. If no
        # relation is given, at_most is a guess: negative controls of earlier versions pass far above their limit.
        if self.passed and self.fits is False and "relation" in self.model_fields_set:
            words = f"{'strictly ' if self.strict else ''}{self.relation.replace('_', ' ')}"
            raise ValueError(f"check {self.name} passed, but measured {self.measured} is not {words} {self.limit}")
        return self


def fits(measured: Number, limit: Number, relation: Relation, *, strict: bool = False) -> bool | None:
    """Return whether `measured` is at most, equal to or at least `limit`; None if one is missing or NaN."""
    left, right = decode_number(measured), decode_number(limit)
    if left is None or right is None or math.isnan(left) or math.isnan(right):
        return None
    if left == right:
        return not strict
    match relation:
        case Relation.AT_MOST:
            return left < right
        case Relation.AT_LEAST:
            return left > right
    return False


class Environment(Strict):
    """The environment in which the numbers were measured."""

    device: str
    backend: str
    world_size: int
    threads: int
    cpus: int | None = None
    """CPUs that a rank's process may use; a scheduler may give it fewer than the machine has. None if not recorded."""
    precision: str
    versions: dict[str, str]
    cpu: str
    gpus: list[str]
    data_source: str


class TablePanel(Strict):
    type: Literal["table"] = "table"
    title: str
    note: str = ""
    columns: list[str]
    rows: list[list[Any]]


class ConfusionPanel(Strict):
    type: Literal["confusion_matrix"] = "confusion_matrix"
    title: str
    note: str = ""
    labels: list[str]
    counts: list[list[int]]
    """counts[true][predicted]"""
    mode: str = ""


class Line(Strict):
    name: str
    y: list[Number]


class SeriesPanel(Strict):
    type: Literal["series"] = "series"
    title: str
    note: str = ""
    x: list[Number]
    x_label: str = ""
    y_label: str = ""
    lines: list[Line]


class HistogramGroup(Strict):
    name: str
    counts: list[int]
    """One count per bin: one fewer than edges."""


class HistogramPanel(Strict):
    type: Literal["histogram"] = "histogram"
    title: str
    note: str = ""
    edges: list[Number]
    log_x: bool = False
    x_label: str = ""
    groups: list[HistogramGroup]


class BarGroup(Strict):
    name: str
    values: list[Number]


class BarsPanel(Strict):
    type: Literal["bars"] = "bars"
    title: str
    note: str = ""
    unit: str = ""
    labels: list[str]
    groups: list[BarGroup]


class HeatPanel(Strict):
    type: Literal["heat"] = "heat"
    title: str
    note: str = ""
    rows: list[str]
    columns: list[str]
    values: list[list[Number]]
    expected: list[list[Number]] | None = None


class TimelineSpan(Strict):
    kind: str
    """What happens: spans of one kind have one colour."""
    begin: Number
    end: Number
    label: str = ""


class TimelineLane(Strict):
    name: str
    spans: list[TimelineSpan]


class TimelinePanel(Strict):
    type: Literal["timeline"] = "timeline"
    title: str
    note: str = ""
    unit: str = "ms"
    """Of begin and end."""
    lanes: list[TimelineLane]


class ImageItem(Strict):
    path: str
    """Relative to the run's `artifacts/`."""
    caption: str


class ImagesPanel(Strict):
    type: Literal["images"] = "images"
    title: str
    note: str = ""
    items: list[ImageItem]


Panel = Annotated[
    TablePanel | ConfusionPanel | SeriesPanel | HistogramPanel | BarsPanel | HeatPanel | ImagesPanel | TimelinePanel,
    Field(discriminator="type"),
]


def verdict_of(checks: Sequence[Check]) -> Verdict:
    """Return the verdict that follows from the checks.

    A failed or unjudged `control` makes the audit inconclusive; otherwise one failed check fails the
    audit, and one unjudged check makes it inconclusive.
    """
    if any(check.name == "control" and check.passed is not True for check in checks):
        return Verdict.INCONCLUSIVE
    if any(check.passed is False for check in checks):
        return Verdict.FAIL
    if any(check.passed is None for check in checks):
        return Verdict.INCONCLUSIVE
    return Verdict.PASS


def headline_of(checks: Sequence[Check], explains: Mapping[str, str], otherwise: str) -> str:
    """Return the title of the panel that explains the verdict at a glance.
    `explains` gives titles by check name: the first check that did not pass decides, `otherwise` is for all others.
    """
    first = next((check.name for check in checks if check.passed is not True), "")
    return explains.get(first, otherwise)


class Result(Strict):
    """Content of `result.json`."""

    schema_version: int = SCHEMA_VERSION
    kind: str
    verdict: Verdict
    environment: Environment
    params: dict[str, Any]
    summary: dict[str, Any]
    limits: list[str]
    """What the result does not show."""
    checks: list[Check]
    panels: list[Panel]
    headline: str | None = None
    """Title of the panel that explains the verdict at a glance: the run page begins with it."""
    diagnosis: Diagnosis | None = None
    """Which mistake explains the gradients; of kinds that compare gradients."""

    @model_validator(mode="after")
    def _headline_is_a_panel(self) -> "Result":
        titles = [panel.title for panel in self.panels]
        if self.headline is not None and self.headline not in titles:
            raise ValueError(f"headline {self.headline!r} is not the title of a panel: {titles}")
        return self

    @model_validator(mode="after")
    def _verdict_follows_from_checks(self) -> "Result":
        if not self.checks:
            raise ValueError("a result needs at least one check")
        names = [check.name for check in self.checks]
        if len(set(names)) != len(names):
            raise ValueError(f"check names repeat: {names}")
        if self.verdict != verdict_of(self.checks):
            raise ValueError(f"verdict {self.verdict} does not follow from the checks: {verdict_of(self.checks)}")
        return self

    def save(self, path: Path) -> None:
        """Write the result atomically. Raises OSError."""
        document = self.model_dump(mode="json")
        for check, written in zip(self.checks, document["checks"], strict=True):
            if "relation" not in check.model_fields_set:
                del written[
                    "relation"
                ]  # a guess must not be stored as a statement that is then checked against the numbers
        write_json_atomically(path, encodable(document))
