"""Columns of a list of runs beyond their own fields: the main check of each, any check and any parameter, by name."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field
from sqlalchemy import select
from sqlmodel import Session, col

from app.documents import Document
from app.runs.derived import RunCheck, RunFacts
from app.runs.documents import RunSummary
from app.runs.errors import refused
from app.runs.outbox import kept_of_check
from app.runs.results.headline import headline
from app.runs.results.judged import JudgedNumber
from app.runs.results.reading import read_result
from app.runs.states import State

MAIN: Final = "check"
"""The column of each run's main check."""
NAMED: Final = re.compile(r"(param|check):(\S(?:.{0,118}\S)?)")
MOST: Final = 20
"""Maximum number of such columns in one list."""


@dataclass(frozen=True, slots=True)
class Column:
    """One such column."""

    text: str
    """As written in a URL: `check`, `check:NAME`, `param:learning_rate`."""
    of: Literal["main", "check", "param"]
    name: str
    """Name of the check or parameter; empty for the main check."""

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Return the column that a text names, None for any other text."""
        if text == MAIN:
            return cls(text, "main", "")
        found = NAMED.fullmatch(text) if text.isprintable() else None
        return None if found is None else cls(text, "param" if found[1] == "param" else "check", found[2])


class ListedCheck(JudgedNumber):
    """A check of one run in a list."""

    name: str
    title: str
    unit: str


class ListedRun(RunSummary):
    """A run in a list, with the requested columns."""

    columns: dict[str, Any] = Field(
        description="Columns requested by `col`, by name: a check as an object, a parameter as its value. "
        "A member is absent for a run without it."
    )


class ListedRuns(Document):
    """One page of a list of runs."""

    items: list[ListedRun]
    next_cursor: str | None = Field(description="For the next page; null on the last page.")


def read_columns(texts: Iterable[str]) -> list[Column]:
    """Return the columns that texts name, each once. Raises Refused for a text that does not name a column."""
    found = {text: Column.read(text) for text in texts}
    for text, column in found.items():
        if column is None:
            raise refused("col", f"{text[:80]!r} is not a valid column: write check, check:NAME or param:NAME")
    return [column for column in found.values() if column is not None]


def column_values(
    session: Session, runs_dir: Path, runs: Sequence[RunSummary], columns: Sequence[Column]
) -> dict[int, dict[str, Any]]:
    """Return the values of each run, by the run's number and the column's text; missing values are absent."""
    main, names = any(column.of == "main" for column in columns), {item.name for item in columns if item.of == "check"}
    checks = _checks(session, runs_dir, runs, None if main else names) if main or names else {}
    return {run.id: _values(run, checks.get(run.id, []), columns) for run in runs}


def _values(run: RunSummary, checks: Sequence[RunCheck], columns: Sequence[Column]) -> dict[str, Any]:
    by_name = {check.name: check for check in checks}
    found: dict[str, Any] = {}
    for column in columns:
        if column.of == "param":
            if column.name in run.params:
                found[column.text] = run.params[column.name]
        elif column.of == "main":
            if checks:
                found[column.text] = _listed(headline(checks))
        elif column.name in by_name:
            found[column.text] = _listed(by_name[column.name])
    return found


def _listed(check: RunCheck) -> ListedCheck:
    return ListedCheck(**{name: getattr(check, name) for name in ListedCheck.model_fields})


def _checks(
    session: Session, runs_dir: Path, runs: Sequence[RunSummary], names: set[str] | None
) -> dict[int, list[RunCheck]]:
    """Return the checks of runs by name: from stored rows, or from the results of runs without rows."""
    ids = [run.id for run in runs if run.state == State.SUCCEEDED]
    found: dict[int, list[RunCheck]] = {}
    query = select(RunCheck).where(col(RunCheck.run_id).in_(ids))
    if names is not None:
        query = query.where(col(RunCheck.name).in_(names))
    for check in session.scalars(query.order_by(col(RunCheck.name))):
        found.setdefault(check.run_id, []).append(check)
    read = select(col(RunFacts.run_id)).where(col(RunFacts.run_id).in_(ids), col(RunFacts.checks_read))
    unread = set(ids) - found.keys() - set(session.scalars(read))
    for run in runs:
        if run.id in unread:
            found[run.id] = [item for item in _of_result(runs_dir, run) if names is None or item.name in names]
    return found


def _of_result(runs_dir: Path, run: RunSummary) -> list[RunCheck]:
    result = read_result(runs_dir, run.id).result
    checks = sorted(result.checks if result else [], key=lambda check: check.name)
    return [RunCheck(run_id=run.id, kind=run.kind, **kept_of_check(check)) for check in checks]


def column_names(session: Session, runs: Sequence[RunSummary]) -> list[str]:
    """Return the columns available for a list of these runs: parameters, then checks, each in order of name."""
    names = select(col(RunCheck.name)).where(col(RunCheck.run_id).in_([run.id for run in runs])).distinct()
    params = {name for run in runs for name in run.params}
    return [
        *(f"param:{name}" for name in sorted(params)),
        *(f"check:{name}" for name in sorted(session.scalars(names))),
    ]
