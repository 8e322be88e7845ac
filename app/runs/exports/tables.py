"""A table as a file: CSV that is safe to open in spreadsheets, Parquet with proper types; both generated in pieces."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from importlib.util import find_spec
from itertools import islice
from typing import Any, Final

from app.runs.errors import Unacceptable
from app.runs.tags import text_from_tags


class Type(Enum):
    """Type of a column's values; each may be null."""

    TEXT = auto()
    TEXTS = auto()
    """A list of tags; in CSV one text, as `app.runs.tags` writes it."""
    INTEGER = auto()
    NUMBER = auto()
    """Float, or the name of a non-finite number."""
    BOOLEAN = auto()
    MOMENT = auto()
    """Unix seconds, or RFC 3339 text; unchanged in CSV."""


Columns = Mapping[str, Type]
Row = Sequence[Any]

CSV_ROWS: Final = 2_000
"""Rows per piece of CSV."""
GROUP_ROWS: Final = 20_000
"""Rows per row group of Parquet, which are held in memory."""
PLAIN: Final = frozenset({int, float})
"""Types written unchanged; bool is not one of them."""
QUOTED_ENDS: Final = "\r\n"
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Characters that spreadsheets read as the beginning of a formula; some also accept the full-width forms."""


def csv_pieces(columns: Columns, rows: Iterable[Row]) -> Iterator[bytes]:
    """Yield a table as CSV with a header line; null is empty. Errors of the first row are raised before any piece."""
    buffer = io.StringIO()
    writer = csv.writer(_Lines(buffer), lineterminator=QUOTED_ENDS)
    writer.writerow(columns)
    for number, row in enumerate(rows, start=1):
        writer.writerow([value if type(value) in PLAIN else _cell(value) for value in row])
        if number % CSV_ROWS == 0:
            yield buffer.getvalue().encode()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue().encode()


class _Lines:
    """Accepts rows that end in `QUOTED_ENDS` and ends them with a line feed.

    The writer quotes a cell only for the characters its rows end with: with only a line feed, a carriage return would
    not be quoted, and spreadsheets would read it as the end of the row.
    """

    def __init__(self, target: io.StringIO) -> None:
        self._target = target

    def write(self, line: str) -> None:
        """Write one row."""
        self._target.write(f"{line.removesuffix(QUOTED_ENDS)}\n")


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        value = text_from_tags(value)
    # A spreadsheet would evaluate text that begins like a formula; the named infinities are harmless.
    if isinstance(value, str) and value.startswith(FORMULA_STARTS) and value != "-Infinity":
        return f"'{value}"
    return value


def parquet_available() -> bool:
    """Return whether pyarrow is installed."""
    return find_spec("pyarrow") is not None


def parquet_pieces(columns: Columns, rows: Iterable[Row]) -> Iterator[bytes]:
    """Return a table as Parquet, a row group at a time; NaN and infinities are real values, times are UTC.

    Errors of the first row are raised before any piece. Raises Unacceptable at once if pyarrow is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: F401  # whether it is there
    except ImportError:
        raise Unacceptable(
            "parquet_unavailable", "format parquet needs pyarrow: pip install 'ddp-audit[parquet]'; csv and json work"
        ) from None
    return _row_groups(columns, rows)


def _row_groups(columns: Columns, rows: Iterable[Row]) -> Iterator[bytes]:
    import pyarrow as arrow
    from pyarrow import parquet

    types = {
        Type.TEXT: arrow.string(),
        Type.TEXTS: arrow.list_(arrow.string()),
        Type.INTEGER: arrow.int64(),
        Type.NUMBER: arrow.float64(),
        Type.BOOLEAN: arrow.bool_(),
        Type.MOMENT: arrow.timestamp("us", tz="UTC"),
    }
    schema = arrow.schema([(name, types[kind]) for name, kind in columns.items()])
    pieces, source = _Pieces(), iter(rows)
    with parquet.ParquetWriter(pieces, schema) as writer:
        while group := list(islice(source, GROUP_ROWS)):
            values = zip(*group, strict=True)
            arrays = [
                arrow.array(_converted(kind, column), types[kind])
                for kind, column in zip(columns.values(), values, strict=True)
            ]
            writer.write_batch(arrow.record_batch(arrays, schema=schema))
            yield pieces.take()
    yield pieces.take()


def _converted(kind: Type, values: Sequence[Any]) -> Sequence[Any]:
    convert = CONVERTERS.get(kind)
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _microseconds(value: float | str) -> int | datetime:
    return datetime.fromisoformat(value) if isinstance(value, str) else round(value * 1_000_000)


CONVERTERS: Final[Mapping[Type, Callable[[Any], Any]]] = {Type.NUMBER: float, Type.MOMENT: _microseconds}


class _Pieces(io.RawIOBase):
    """An in-memory file that is written once and read in pieces while it grows."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._length = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._length

    def write(self, data: Any, /) -> int:
        piece = bytes(data)
        self._waiting.append(piece)
        self._length += len(piece)
        return len(piece)

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        piece = b"".join(self._waiting)
        self._waiting.clear()
        return piece
