"""A run as a file: tables as CSV or Parquet, everything as JSON."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import orjson
from sqlmodel import Session, col, select

from app.documents import to_json
from app.runs.exports.tables import Columns, Type, csv_pieces, parquet_pieces
from app.runs.models import Run, RunEvent
from app.runs.results.reading import read_result, result_document
from app.runs.store import get_run, get_run_document
from app.runs.telemetry.events import every_event
from app.runs.telemetry.resources import resources

Format = Literal["csv", "json", "parquet"]
Table = Literal["metrics", "checks", "resources"]
COLUMNS: Final[dict[Table, Columns]] = {
    "metrics": {
        "event_id": Type.INTEGER,
        "stage": Type.TEXT,
        "attempt": Type.INTEGER,
        "rank": Type.INTEGER,
        "t": Type.MOMENT,
        "step": Type.INTEGER,
        "key": Type.TEXT,
        "value": Type.NUMBER,
    },
    "checks": {
        "name": Type.TEXT,
        "title": Type.TEXT,
        "passed": Type.BOOLEAN,
        "measured": Type.NUMBER,
        "limit": Type.NUMBER,
        "relation": Type.TEXT,
        "strict": Type.BOOLEAN,
        "unit": Type.TEXT,
        "detail": Type.TEXT,
    },
    "resources": {
        "stage": Type.TEXT,
        "attempt": Type.INTEGER,
        "rank": Type.INTEGER,
        "t": Type.MOMENT,
        "seconds": Type.NUMBER,
        "cpu_percent": Type.NUMBER,
        "rss_bytes": Type.INTEGER,
        "gpu_bytes": Type.INTEGER,
        "gpu_percent": Type.NUMBER,
    },
}
MEDIA_TYPES: Final[dict[Format, str]] = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
}
ROWS_PER_PIECE: Final = 2_000


def run_pieces(session: Session, runs_dir: Path, run_id: int, form: Format, table: Table) -> Iterator[bytes]:
    """Return the run as a file, generated piece by piece as it is read; JSON contains all tables.

    Raises NotFound and, for Parquet without pyarrow, Unacceptable at once.
    """
    if form == "json":
        return json_pieces(session, runs_dir, run_id)
    write = csv_pieces if form == "csv" else parquet_pieces
    return write(COLUMNS[table], rows(session, runs_dir, run_id, table))


def rows(session: Session, runs_dir: Path, run_id: int, table: Table) -> Iterator[tuple[Any, ...]]:
    """Return the rows of a table, values in the order of `COLUMNS`; non-finite numbers are given by name.

    Raises NotFound at once.
    """
    match table:
        case "checks":
            names = COLUMNS["checks"]
            return (tuple(check[name] for name in names) for check in result_document(runs_dir, run_id)["checks"])
        case "resources":
            return _resource_rows(session, get_run(session, run_id))
    return _metric_rows(session, run_id)


def _resource_rows(session: Session, run: Run) -> Iterator[tuple[Any, ...]]:
    began = (run.started_at or run.created_at).timestamp()
    for series in resources(session, run).series:
        place = (series.stage, series.attempt, series.rank)
        parts = (series[name] for name in ("seconds", "cpu_percent", "rss_bytes", "gpu_bytes", "gpu_percent"))
        for seconds, *used in zip(*parts, strict=True):
            yield *place, round(began + seconds, 3), seconds, *used


def _metric_rows(session: Session, run_id: int) -> Iterator[tuple[Any, ...]]:
    for number, stage, attempt, rank, line in _metric_lines(session, run_id):
        event = orjson.loads(line)
        for key, value in event["values"].items():
            yield number, stage, attempt, rank, event["t"], event["step"], key, value


def _metric_lines(session: Session, run_id: int) -> Iterator[tuple[int, str, int, int, str]]:
    # Plain columns, a few thousand at a time: whole rows as objects take most of an export's time.
    columns = (RunEvent.id, RunEvent.stage, RunEvent.attempt, RunEvent.rank, RunEvent.line)
    after = 0
    while True:
        query = select(*columns).where(RunEvent.run_id == run_id, RunEvent.type == "metrics", RunEvent.id > after)  # type: ignore[call-overload]
        page = session.exec(query.order_by(col(RunEvent.id)).limit(ROWS_PER_PIECE)).all()
        if not page:
            return
        yield from page
        after = page[-1][0]


def json_pieces(session: Session, runs_dir: Path, run_id: int) -> Iterator[bytes]:
    """Yield one JSON document `{run, result, resources, events}` with every event, piece by piece."""
    parts = {
        "run": get_run_document(session, run_id),
        "result": read_result(runs_dir, run_id).document or None,
        "resources": resources(session, get_run(session, run_id)),
    }
    yield to_json(parts).removesuffix(b"}") + b',"events":'
    yield from array_pieces(every_event(session, run_id))
    yield b"}"


def array_pieces(items: Iterator[Any]) -> Iterator[bytes]:
    """Yield `items` as one JSON array, a few thousand at a time."""
    pieces: list[bytes] = [b"["]
    between = b""
    for item in items:
        pieces += (between, to_json(item))
        between = b","
        if len(pieces) > 2 * ROWS_PER_PIECE:
            yield b"".join(pieces)
            pieces.clear()
    yield b"".join([*pieces, b"]"])
