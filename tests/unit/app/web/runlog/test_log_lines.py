"""Captured output read from byte offsets: every line once, none torn, whatever bytes it has."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.runs.telemetry.logs import LogFile
from app.web.runlog import lines as loglines
from app.web.runlog.lines import LogCursor, LogFilter, event_line, log_files, more, tail
from app.web.runlog.terminal import shown


def log(path: Path, *, ended: bool = False) -> LogFile:
    return LogFile(path=path, stage="s", attempt=1, rank=0, stream="stdout", ended=ended)


def texts(lines: list[loglines.LogLine]) -> list[str]:
    return [line.text for line in lines]


@example([b"\n\n", b"a\n\n"])
@given(st.lists(st.binary(min_size=0, max_size=12).map(lambda part: part.replace(b"\r", b"")), max_size=12))
def test_pieces_give_every_line_once(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("log") / "out"
    cursor, found, written = LogCursor(), [], b""
    for part in parts:
        written += part
        path.write_bytes(written)
        found += texts(more(log(path), cursor))
    found += texts(more(log(path, ended=True), cursor))
    expected = written.decode(errors="replace").removesuffix("\n").split("\n") if written else []
    assert found == [shown(line) for line in expected]


def test_page_and_stream_share_no_line(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("one\ntwo\nhal")
    cursor = LogCursor()
    assert texts(tail(log(path), cursor)) == ["one", "two"]
    path.write_text("one\ntwo\nhalf\nfour\n")
    again = LogCursor.decode(cursor.encode())
    assert texts(more(log(path), again)) == ["half", "four"]
    assert more(log(path), again) == []


def counted(lines: list[loglines.LogLine]) -> tuple[int, int, int]:
    """Return lines shown, lines the notes stand for, bytes nobody counted."""
    shown_lines = sum(not line.is_note for line in lines)
    return shown_lines, sum(line.left_lines for line in lines), sum(line.left_bytes for line in lines)


def test_long_file_tells_how_many_lines_it_has(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("".join(f"line {number:06d}\n" for number in range(5000)))
    lines = tail(log(path), LogCursor(), most=300)
    assert counted(lines) == (300, 4700, 0)
    assert lines[0].text.startswith("4,700 lines before this one are not shown")
    assert (lines[1].text, lines[-1].text) == ("line 004700", "line 004999")


def test_huge_file_tells_bytes_instead(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("".join(f"line {number:06d}\n" for number in range(5000)))
    lines = tail(log(path), LogCursor(), countable=1000)
    shown_lines, left, uncounted = counted(lines)
    assert (shown_lines, uncounted > 0) == (400, True)
    assert uncounted + (shown_lines + left) * 12 == path.stat().st_size


def test_flood_is_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("start\n")
    cursor = LogCursor()
    tail(log(path), cursor)
    with path.open("a") as handle:
        handle.write(("y" * 99 + "\n") * 20_000)
    lines = more(log(path), cursor)
    shown_lines, left, uncounted = counted(lines)
    assert lines[0].is_note
    assert 0 < shown_lines < 400
    assert (shown_lines + left, uncounted) == (20_000, 0)
    assert more(log(path), cursor) == []


def test_missing_file_is_empty(tmp_path: Path) -> None:
    cursor = LogCursor()
    assert tail(log(tmp_path / "none"), cursor) == []
    assert cursor.at(log(tmp_path / "none")) == 0


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("10 %\r20 %\r30 %", "30 %"),
        ("windows line\r", "windows line"),
        ("100 %\r      \r", "100 %"),
        ("10 %\b\b\b\b20 %", "20 %"),
        ("\x1b[1;31mred\x1b[0m and plain", "red and plain"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("50 %\r\x1b[Kdone", "done"),
        ("bell\x07 and \x1b", "bell\u2407 and \u241b"),
        ("tab\tstays, ünïcode too", "tab\tstays, ünïcode too"),
        ("two\nlines\r\n", "two\nlines\n"),
    ],
)
def test_output_reads_as_on_a_terminal(raw: str, seen: str) -> None:
    assert shown(raw) == seen


def test_endless_line_is_cut_and_marked() -> None:
    assert shown("z" * 5000).endswith("… (5,000 characters)")
    assert len(shown("\x1b" * 100_000)) < 5000  # in linear time too


@pytest.mark.parametrize("text", ["", "nonsense", "AAAA", "eJw"])
def test_foreign_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a cursor"):
        LogCursor.decode(text)


def test_filter_finds_files_of_one_rank(tmp_path: Path) -> None:
    folder = tmp_path / "train" / "attempt_1" / "logs"
    folder.mkdir(parents=True)
    for name in ("rank0.stdout", "rank10.stderr", "rank2.stderr", "rank0.txt", "notes"):
        (folder / name).touch()
    stages = [
        {"name": "train", "attempt": 1, "finished_at": None},
        {"name": "later", "attempt": 0, "finished_at": None},
    ]
    assert [(item.rank, item.stream) for item in log_files(tmp_path, stages, LogFilter())] == [
        (0, "stdout"),
        (2, "stderr"),
        (10, "stderr"),
    ]
    assert [item.rank for item in log_files(tmp_path, stages, LogFilter(rank=2))] == [2]
    assert list(log_files(tmp_path, stages, LogFilter(stream="messages"))) == []
    assert list(log_files(tmp_path, stages, LogFilter(stage="later"))) == []


def test_numbers_are_no_lines() -> None:
    event = {"stage": "s", "rank": 1, "t": 3661.5}
    assert event_line({**event, "type": "metrics"}) is None
    line = event_line({**event, "type": "message", "level": "warning", "text": "<b>"})
    assert line is not None
    assert (line.source, line.text, line.css) == ("s/1 01:01:01.500Z", "<b>", "warn")
