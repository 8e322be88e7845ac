"""A run as a file: tables as CSV or Parquet, everything as JSON."""

import csv
import importlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import orjson
from sqlmodel import Session, col, select

from app.runs.artifacts import result
from app.runs.errors import NotFound, Unacceptable
from app.runs.events import every_event
from app.runs.models import RunEvent
from app.runs.store import get_run_document

Format = Literal["csv", "json", "parquet"]
Table = Literal["metrics", "checks"]
COLUMNS: Final[dict[Table, tuple[str, ...]]] = {
    "metrics": ("event_id", "stage", "attempt", "rank", "t", "step", "key", "value"),
    "checks": ("name", "title", "passed", "measured", "limit", "unit", "detail"),
}
MEDIA_TYPES: Final[dict[Format, str]] = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
}
ROWS_PER_PIECE: Final = 2_000
PLAIN: Final = frozenset({int, float})
"""Types written as they are; a bool is not among them."""
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")


def rows(session: Session, runs_dir: Path, run_id: int, table: Table) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table, values in the order of `COLUMNS`; non-finite numbers are their names."""
    if table == "checks":
        for check in result(runs_dir, run_id)["checks"]:
            yield tuple(check[name] for name in COLUMNS["checks"])
        return
    for number, stage, attempt, rank, line in _metric_lines(session, run_id):
        event = orjson.loads(line)
        for key, value in event["values"].items():
            yield number, stage, attempt, rank, event["t"], event["step"], key, value


def _metric_lines(session: Session, run_id: int) -> Iterator[tuple[int, str, int, int, str]]:
    # Plain columns, some thousand at a time: whole rows as objects take most of the time of an export.
    columns = (RunEvent.id, RunEvent.stage, RunEvent.attempt, RunEvent.rank, RunEvent.line)
    after = 0
    while True:
        query = select(*columns).where(RunEvent.run_id == run_id, RunEvent.type == "metrics", RunEvent.id > after)  # type: ignore[call-overload]
        page = session.exec(query.order_by(col(RunEvent.id)).limit(ROWS_PER_PIECE)).all()
        if not page:
            return
        yield from page
        after = page[-1][0]


def csv_pieces(session: Session, runs_dir: Path, run_id: int, table: Table) -> Iterator[bytes]:
    """Yield the table as CSV, some thousand rows at a time. Raises NotFound before the first piece."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS[table])
    for number, row in enumerate(rows(session, runs_dir, run_id, table), start=1):
        writer.writerow([value if type(value) in PLAIN else _cell(value) for value in row])
        if number % ROWS_PER_PIECE == 0:
            yield buffer.getvalue().encode()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue().encode()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    # A spreadsheet would run a text that begins like a formula; the named infinities are harmless.
    if isinstance(value, str) and value.startswith(FORMULA_STARTS) and value != "-Infinity":
        return f"'{value}"
    return value


def json_pieces(session: Session, runs_dir: Path, run_id: int) -> Iterator[bytes]:
    """Yield one JSON document `{run, result, events}` with every event, piece by piece."""
    try:
        outcome: dict[str, Any] | None = result(runs_dir, run_id)
    except NotFound:
        outcome = None
    run = orjson.dumps(get_run_document(session, run_id))
    yield b'{"run":' + run + b',"result":' + orjson.dumps(outcome) + b',"events":['
    pieces: list[bytes] = []
    first = True
    for event in every_event(session, run_id):
        pieces.append((b"" if first else b",") + orjson.dumps(event))
        first = False
        if len(pieces) == ROWS_PER_PIECE:
            yield b"".join(pieces)
            pieces.clear()
    yield b"".join(pieces) + b"]}"


def parquet_bytes(session: Session, runs_dir: Path, run_id: int, table: Table) -> bytes:
    """Return the table as a Parquet file; numbers that are not finite are real NaN and infinities in it.

    Raises Unacceptable when pyarrow is not installed.
    """
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise Unacceptable(
            "parquet_unavailable", "format parquet needs pyarrow: pip install 'ddp-audit[parquet]'; csv and json work"
        ) from None
    names = COLUMNS[table]
    numeric = {"value", "measured", "limit"}
    columns = list(zip(*rows(session, runs_dir, run_id, table), strict=True)) or [()] * len(names)
    arrays = [
        arrow.array([_number(value) for value in column], type=arrow.float64())
        if name in numeric
        else arrow.array(column)
        for name, column in zip(names, columns, strict=True)
    ]
    sink = io.BytesIO()
    parquet.write_table(arrow.Table.from_arrays(arrays, names=list(names)), sink)
    return sink.getvalue()


def _number(value: float | str | None) -> float | None:
    return float(value) if isinstance(value, str) else value
