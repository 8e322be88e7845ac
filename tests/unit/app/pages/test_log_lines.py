"""Captured output read from byte offsets: every line once, none torn, whatever bytes it has."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.runs.logs import LogFile
from app.web.pages import loglines
from app.web.pages.loglines import LogCursor, LogFilter, event_line, log_files, more, shown, tail


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
    assert found == expected


def test_page_and_stream_share_no_line(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("one\ntwo\nhal")
    cursor = LogCursor()
    assert texts(tail(log(path), cursor)) == ["one", "two"]
    path.write_text("one\ntwo\nhalf\nfour\n")
    again = LogCursor.decode(cursor.encode())
    assert texts(more(log(path), again)) == ["half", "four"]
    assert more(log(path), again) == []


def test_long_file_starts_with_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("".join(f"line {number:06d}\n" for number in range(5000)))
    lines = tail(log(path), LogCursor())
    assert "bytes before this line are not shown" in lines[0].text
    assert lines[1].text.startswith("line ")
    assert lines[-1].text == "line 004999"


def test_flood_is_skipped_and_told(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("start\n")
    cursor = LogCursor()
    tail(log(path), cursor)
    with path.open("a") as handle:
        handle.write("x" * 99 + "\n" * 1 + ("y" * 99 + "\n") * 20_000)
    lines = more(log(path), cursor)
    assert "not shown" in lines[0].text
    assert len(lines) < 400
    assert more(log(path), cursor) == []


def test_missing_file_is_empty(tmp_path: Path) -> None:
    cursor = LogCursor()
    assert tail(log(tmp_path / "none"), cursor) == []
    assert cursor.at(log(tmp_path / "none")) == 0


def test_overwritten_progress_bar_is_left_out() -> None:
    assert shown("10 %\r20 %\r30 %") == "30 %"
    assert shown("windows line\r") == "windows line"
    assert shown("z" * 5000).endswith("… (5,000 characters)")


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
