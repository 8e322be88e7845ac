"""Any number of runs as one file: the list itself, or the checks of every run in it."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

import orjson
from sqlmodel import Session, col, select

from app.runs.derived import RunCheck, RunFacts
from app.runs.documents import RunSummary
from app.runs.exports.run import Format, array_pieces
from app.runs.exports.tables import Columns, Type, csv_pieces, parquet_pieces
from app.runs.ordering import Order
from app.runs.results.bounds import share
from app.runs.results.reading import read_result
from app.runs.states import State
from app.runs.store import PAGE_LIMIT, RunFilters, list_runs
from trainer.contract.events import encodable, encode_number

ListTable = Literal["runs", "checks"]
Document = dict[str, Any]
KEPT: Final = ("title", "passed", "measured", "limit", "relation", "strict", "unit")
"""Columns of a check, besides its name."""
COLUMNS: Final[dict[ListTable, Columns]] = {
    "runs": {
        "id": Type.INTEGER,
        "name": Type.TEXT,
        "tags": Type.TEXTS,
        "notes": Type.TEXT,
        "pinned": Type.BOOLEAN,
        "kind": Type.TEXT,
        "preset": Type.TEXT,
        "state": Type.TEXT,
        "reason": Type.TEXT,
        "verdict": Type.TEXT,
        "created_at": Type.MOMENT,
        "started_at": Type.MOMENT,
        "finished_at": Type.MOMENT,
        "took_seconds": Type.NUMBER,
        "device": Type.TEXT,
        "backend": Type.TEXT,
        "retry_of": Type.INTEGER,
        "params": Type.TEXT,
    },
    "checks": {
        "run_id": Type.INTEGER,
        "run_name": Type.TEXT,
        "kind": Type.TEXT,
        "preset": Type.TEXT,
        "verdict": Type.TEXT,
        "finished_at": Type.MOMENT,
        "check": Type.TEXT,
        "title": Type.TEXT,
        "passed": Type.BOOLEAN,
        "measured": Type.NUMBER,
        "limit": Type.NUMBER,
        "relation": Type.TEXT,
        "strict": Type.BOOLEAN,
        "unit": Type.TEXT,
        "margin": Type.NUMBER,
    },
}


def list_pieces(
    session: Session, runs_dir: Path, filters: RunFilters, order: Order, *, form: Format, table: ListTable
) -> Iterator[bytes]:
    """Return the runs that match `filters` as one file; one page of the list is in memory at a time.

    JSON is `{items}`: runs as the list shows them, or checks with the fields of `COLUMNS`.
    Raises Unacceptable at once for Parquet without pyarrow.
    """
    found = _documents(session, runs_dir, filters, order, table)
    if form == "json":
        return chain([b'{"items":'], array_pieces(found), [b"}"])
    columns = COLUMNS[table]
    rows = ([_value(item[name]) for name in columns] for item in found)
    return (csv_pieces if form == "csv" else parquet_pieces)(columns, rows)


def _value(value: Any) -> Any:
    return orjson.dumps(value).decode() if isinstance(value, dict) else value


def _documents(
    session: Session, runs_dir: Path, filters: RunFilters, order: Order, table: ListTable
) -> Iterator[RunSummary | Document]:
    for page in _pages(session, filters, order):
        yield from page if table == "runs" else _checks(session, runs_dir, page)


def _pages(session: Session, filters: RunFilters, order: Order) -> Iterator[list[RunSummary]]:
    cursor = None
    while True:
        page = list_runs(session, filters, order=order, cursor=cursor, limit=PAGE_LIMIT)
        yield page.items
        session.expunge_all()
        cursor = page.next_cursor
        if cursor is None:
            return


def _checks(session: Session, runs_dir: Path, runs: list[RunSummary]) -> Iterator[Document]:
    """Yield the checks of `runs`: from the database, or from the result if they are not stored there yet."""
    ids = [run.id for run in runs if run.state == State.SUCCEEDED]
    read = select(RunFacts.run_id).where(col(RunFacts.run_id).in_(ids), col(RunFacts.checks_read))
    kept: dict[int, list[Document]] = {run_id: [] for run_id in session.exec(read)}
    # Plain columns: rows as objects take most of an export's time.
    columns = [col(getattr(RunCheck, name)) for name in ("run_id", "name", *KEPT)]
    rows = session.execute(select(*columns).where(columns[0].in_(kept)).order_by(columns[1]))
    for run_id, name, *values in rows:
        kept[run_id].append(_check(name, dict(zip(KEPT, values, strict=True))))
    for run in runs:
        if run.id in ids:
            found = kept[run.id] if run.id in kept else _from_result(runs_dir, run.id)
            its = _of_run(run)
            yield from ({**its, **check} for check in found)


def _from_result(runs_dir: Path, run_id: int) -> list[Document]:
    result = read_result(runs_dir, run_id).result
    found = sorted(result.checks if result else [], key=lambda check: check.name)
    return [_check(check.name, encodable(check.model_dump(mode="json", include=set(KEPT)))) for check in found]


def _of_run(run: RunSummary) -> Document:
    own = ("kind", "preset", "verdict", "finished_at")
    return {"run_id": run.id, "run_name": run.name} | {name: run[name] for name in own}


def _check(name: str, fields: Document) -> Document:
    return {"check": name, **fields, "margin": encode_number(share(fields))}
