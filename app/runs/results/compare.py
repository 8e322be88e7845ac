"""Two to ten runs side by side: parameters, checks, summaries and metrics."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import Field
from sqlmodel import Session

from app.documents import Document
from app.runs.errors import refused
from app.runs.results.judged import JudgedNumber
from app.runs.store import get_run_document
from app.runs.telemetry.series import MetricSeries, metrics

FEWEST: Final = 2
MOST: Final = 10
READ: Final = frozenset({"relation", "strict"})
"""Fields that describe how to read a check: they belong to the kind, so they never differ between runs."""


def read_ids(text: str) -> list[int]:
    """Return the run numbers of `1,2,3`. Raises Refused unless there are two to ten different ones."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
        raise refused("ids", f"needs run numbers separated by commas, such as 1,2; given {text[:80]!r}")
    ids = list(dict.fromkeys(int(word) for word in words))
    if not FEWEST <= len(ids) <= MOST:
        raise refused("ids", f"needs {FEWEST} to {MOST} different runs, given {len(ids)}")
    return ids


class ComparedRun(Document):
    """The run of a column."""

    id: int
    name: str
    tags: list[str]
    kind: str
    preset: str | None
    state: str
    reason: str | None
    verdict: str | None
    created_at: str
    finished_at: str | None


class ComparedValues(Document):
    """A parameter or a summary value of several runs."""

    name: str
    values: list[Any] = Field(description="One per run; null for a run without it.")
    differs: bool


class ComparedCheck(JudgedNumber):
    """A check of one run."""

    unit: str


class ComparedChecks(Document):
    """A check of several runs."""

    name: str
    title: str
    values: list[ComparedCheck | None] = Field(description="One per run; null for a run without this check.")
    differs: bool


class RunSeries(Document):
    """The metrics of one run."""

    id: int
    series: list[MetricSeries]


class Comparison(Document):
    """Runs side by side."""

    ids: list[int]
    runs: list[ComparedRun]
    params: list[ComparedValues]
    checks: list[ComparedChecks]
    summary: list[ComparedValues]
    metrics: list[RunSeries] = Field(description="One series per run, metric and rank.")


def compare(
    session: Session, ids: Sequence[int], results: Sequence[Mapping[str, Any]], max_points: int = 500
) -> Comparison:
    """Return the runs side by side; `results` has the result of each run, empty if there is none.

    Raises NotFound naming the run.
    """
    runs = [get_run_document(session, run_id) for run_id in ids]
    return Comparison(
        ids=list(ids),
        runs=[ComparedRun(**{name: getattr(run, name) for name in ComparedRun.model_fields}) for run in runs],
        params=_rows([run.params for run in runs]),
        checks=_checks(results),
        summary=_rows([_flat(document.get("summary", {})) for document in results]),
        metrics=[RunSeries(id=run_id, series=metrics(session, run_id, max_points=max_points).series) for run_id in ids],
    )


def _flat(summary: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings (`modes.no_sync.test_loss`), so that one row is one number; lists are not split."""
    flat: dict[str, Any] = {}
    for name, value in summary.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _rows(columns: Sequence[Mapping[str, Any]]) -> list[ComparedValues]:
    names = dict.fromkeys(name for column in columns for name in column)
    rows = []
    for name in names:
        values = [column.get(name) for column in columns]
        rows.append(ComparedValues(name=name, values=values, differs=_differ(values, columns)))
    return rows


def _differ(values: Sequence[Any], columns: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether values differ between the runs that have them: a run without a result does not differ."""
    there = [value for value, column in zip(values, columns, strict=True) if column]
    return any(value != there[0] for value in there)


def _checks(results: Sequence[Mapping[str, Any]]) -> list[ComparedChecks]:
    columns = [{check["name"]: check for check in document.get("checks", [])} for document in results]
    titles = {name: check["title"] for column in columns for name, check in column.items()}
    rows = []
    for name, title in titles.items():
        values = [_compared(column[name]) if name in column else None for column in columns]
        judged = [value and value.model_dump(exclude=set(READ)) for value in values]
        rows.append(ComparedChecks(name=name, title=title, values=values, differs=_differ(judged, columns)))
    return rows


def _compared(check: Mapping[str, Any]) -> ComparedCheck:
    return ComparedCheck(**{name: check[name] for name in ComparedCheck.model_fields})
