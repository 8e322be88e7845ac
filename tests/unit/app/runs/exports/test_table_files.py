"""Tables as CSV and Parquet: types, null and NaN, empty tables, formulas, and memory that does not grow."""

import csv
import io
import math
import sys
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from app.runs.errors import NotFound, Unacceptable
from app.runs.exports.tables import GROUP_ROWS, Columns, Type, csv_pieces, parquet_available, parquet_pieces

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

COLUMNS: Columns = {
    "text": Type.TEXT,
    "tags": Type.TEXTS,
    "step": Type.INTEGER,
    "value": Type.NUMBER,
    "passed": Type.BOOLEAN,
    "at": Type.MOMENT,
}
ROWS = [
    ("a,b", ["x", "y"], 1, 0.5, True, "2026-11-30T02:00:00.123Z"),
    ('say "so"\n', [], 2**53, "NaN", False, 1_700_000_000.25),
    (None, None, None, None, None, None),
    ("=1+1", ["-x"], -3, "-Infinity", None, 0),
    ("ü", ["z"], 0, 10**18, True, "1970-01-01T00:00:00Z"),
]


def read(columns: Columns, rows: list[tuple[Any, ...]]) -> Any:
    return parquet.read_table(io.BytesIO(b"".join(parquet_pieces(columns, rows))))


def test_parquet_has_true_types() -> None:
    table = read(COLUMNS, ROWS)
    moment = arrow.timestamp("us", tz="UTC")
    assert table.schema.types == [
        arrow.string(), arrow.list_(arrow.string()), arrow.int64(), arrow.float64(), arrow.bool_(), moment
    ]  # fmt: skip
    assert table["text"].to_pylist() == ["a,b", 'say "so"\n', None, "=1+1", "ü"]
    assert table["tags"].to_pylist() == [["x", "y"], [], None, ["-x"], ["z"]]
    assert table["passed"].to_pylist() == [True, False, None, None, True]


def test_parquet_tells_nan_from_null() -> None:
    column = read(COLUMNS, ROWS)["value"]
    assert column.null_count == 1
    first, nan, null, infinity, large = column.to_pylist()
    assert (first, null, infinity, large) == (0.5, None, -math.inf, 1e18)
    assert math.isnan(nan)


def test_parquet_moments_are_utc() -> None:
    moments = read(COLUMNS, ROWS)["at"].to_pylist()
    assert moments[0] == datetime(2026, 11, 30, 2, 0, 0, 123_000, tzinfo=UTC)
    assert moments[1].timestamp() == 1_700_000_000.25
    assert moments[2] is None
    assert moments[3] == moments[4] == datetime.fromtimestamp(0, UTC)


def test_empty_parquet_keeps_types() -> None:
    table = read(COLUMNS, [])
    assert table.num_rows == 0
    assert table.schema == read(COLUMNS, ROWS).schema


def test_wrong_type_is_an_error() -> None:
    with pytest.raises(arrow.ArrowInvalid):
        read({"step": Type.INTEGER}, [("one",)])


def test_parquet_comes_in_groups() -> None:
    rows = ((number,) for number in range(2 * GROUP_ROWS + 1))
    pieces = list(parquet_pieces({"n": Type.INTEGER}, rows))
    assert len(pieces) == 4  # three groups and the end of the file
    file = parquet.ParquetFile(io.BytesIO(b"".join(pieces)))
    assert [file.metadata.row_group(group).num_rows for group in range(3)] == [GROUP_ROWS, GROUP_ROWS, 1]
    assert file.read()["n"].to_pylist() == list(range(2 * GROUP_ROWS + 1))


def peak(groups: int) -> int:
    rows = ((number, f"text {number}") for number in range(groups * GROUP_ROWS))
    tracemalloc.start()
    for _piece in parquet_pieces({"n": Type.INTEGER, "text": Type.TEXT}, rows):
        pass
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return held


def test_memory_does_not_grow_with_rows() -> None:
    peak(1)
    assert peak(6) < 1.2 * peak(2)


def test_missing_pyarrow_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parquet_available()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert not parquet_available()
    with pytest.raises(Unacceptable, match=r"ddp-audit\[parquet\]"):
        next(parquet_pieces(COLUMNS, ROWS))


def test_csv_is_safe_and_exact() -> None:
    text = b"".join(csv_pieces(COLUMNS, ROWS)).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["text"] for row in rows] == ["a,b", 'say "so"\n', "", "'=1+1", "ü"]
    assert [row["tags"] for row in rows] == ["x, y", "", "", "'-x", "z"]
    assert [row["value"] for row in rows] == ["0.5", "NaN", "", "-Infinity", "1000000000000000000"]
    assert [row["passed"] for row in rows] == ["true", "false", "", "", "true"]
    assert [row["step"] for row in rows] == ["1", "9007199254740992", "", "-3", "0"]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠", "a", "'", "|"])
def test_no_cell_begins_a_formula(start: str) -> None:
    text = b"".join(csv_pieces({"text": Type.TEXT}, [(f"{start}1+1",)])).decode()
    [_, [cell]] = csv.reader(io.StringIO(text, newline=""))
    assert cell == (f"{start}1+1" if start in "a'|" else f"'{start}1+1")


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n", "\n\r"])
def test_no_text_ends_its_row(end: str) -> None:
    row = (f"a{end}=1+1", f"b{end}")
    text = b"".join(csv_pieces({"one": Type.TEXT, "two": Type.TEXT}, [row, ("c", "d")])).decode()
    assert text == f'one,two\n"a{end}=1+1","b{end}"\nc,d\n'


def refusing(there: bool = False) -> Iterator[tuple[Any, ...]]:
    if not there:
        raise NotFound("no_result", "there is none")
    yield ()


@pytest.mark.parametrize("pieces", [csv_pieces, parquet_pieces])
def test_refusal_comes_before_any_piece(pieces: Any) -> None:
    with pytest.raises(NotFound):
        next(pieces(COLUMNS, refusing()))
