"""Tables of the command line: one line per row for programs, sizes and times as a person reads them."""

import time
from collections.abc import Iterator

import pytest

from app.cli.output import cell, table

LONG = "a name that is longer than any terminal is wide: " + "x" * 150


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_pipe_gets_a_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    table(["id", "name"], [[1, LONG], [2, None]])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[2].split() == ["1", *LONG.split()]
    assert lines[3].split() == ["2", "-"]


def test_bytes_are_shown_as_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    table(["run_id", "bytes"], [[2048, 2048]])
    head, _rule, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "id", "size"]
    assert row.split() == ["2048", "2.0", "KiB"]


@pytest.mark.usefixtures("in_new_york")
def test_times_carry_the_offset_of_this_zone(capsys: pytest.CaptureFixture[str]) -> None:
    """The clock is turned back between the two: without the offset the second is 59 minutes before the first."""
    looks_like_a_time = "2026-03-01T23:30:05Z"
    rows: list[list[str | None]] = [
        ["2026-11-01T05:59:30.000Z", looks_like_a_time],
        ["2026-11-01T06:00:30.000Z", None],
        [None, ""],
    ]
    table(["created", "name"], rows)
    told = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    first, second = ["2026-11-01", "01:59:30-04:00"], ["2026-11-01", "01:00:30-05:00"]
    assert told == [[*first, looks_like_a_time], [*second, "-"], ["-"]]


def test_empty_table_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    table(["run_id", "name"], [])
    table(["path", "size"], [], title="files")
    assert capsys.readouterr().out == "run id: none\nfiles: none\n"


def test_nested_lists_keep_their_groups() -> None:
    assert cell([[108, 93], [236, None]]) == "108, 93; 236, -"
    assert cell([1, 2.5]) == "1, 2.5"
