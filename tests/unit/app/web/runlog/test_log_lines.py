"""Captured output as lines of a page: every line once, none torn, for any bytes."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.runs.telemetry.items import OutputFilter
from app.runs.telemetry.logs import LogFile, read_piece
from app.web.runlog.lines import MOST_PRINTING, LogFilter, LogLine, event_line, output_lines, text_lines
from app.web.runlog.tail import tail
from app.web.runlog.terminal import shown


def log(path: Path, *, ended: bool = False) -> LogFile:
    return LogFile(path=path, stage="s", attempt=1, rank=0, stream="stdout", ended=ended)


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


@example([b"\n\n", b"a\n\n"])
@given(st.lists(st.binary(min_size=0, max_size=12).map(lambda part: part.replace(b"\r", b"")), max_size=12))
def test_pieces_give_every_line_once(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("log") / "out"
    offset, found, written = 0, [], b""
    for number, part in enumerate([*parts, b""]):
        written += part
        path.write_bytes(written)
        piece = read_piece(log(path, ended=number == len(parts)), offset, whole_lines=True)
        found += texts(text_lines(log(path), piece.text))
        offset = piece.next_offset
    expected = written.decode(errors="replace").removesuffix("\n").split("\n") if written else []
    assert found == [shown(line) for line in expected]
    assert offset == len(written)


def test_page_and_stream_share_no_line(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("one\ntwo\nhal")
    lines, offset = tail(log(path))
    assert texts(lines) == ["one", "two"]
    path.write_text("one\ntwo\nhalf\nfour\n")
    piece = read_piece(log(path), offset, whole_lines=True)
    assert texts(text_lines(log(path), piece.text)) == ["half", "four"]
    assert read_piece(log(path), piece.next_offset, whole_lines=True).text == ""


def counted(lines: list[LogLine]) -> tuple[int, int, int]:
    """Return shown lines, lines represented by notes, and uncounted bytes."""
    shown_lines = sum(not line.is_note for line in lines)
    return shown_lines, sum(line.left_lines for line in lines), sum(line.left_bytes for line in lines)


def test_long_file_tells_how_many_lines_it_has(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("".join(f"line {number:06d}\n" for number in range(5000)))
    lines, offset = tail(log(path), most=300)
    assert counted(lines) == (300, 4700, 0)
    assert lines[0].text.startswith("4,700 lines before this one are not shown")
    assert (lines[1].text, lines[-1].text) == ("line 004700", "line 004999")
    assert offset == path.stat().st_size


def test_huge_file_tells_bytes_instead(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("".join(f"line {number:06d}\n" for number in range(5000)))
    lines, _ = tail(log(path), countable=1000)
    shown_lines, left, uncounted = counted(lines)
    assert (shown_lines, uncounted > 0) == (400, True)
    assert uncounted + (shown_lines + left) * 12 == path.stat().st_size


def test_skipped_output_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "s" / "attempt_1" / "logs" / "rank0.stdout"
    path.parent.mkdir(parents=True)
    path.write_text("ten bytes\n" * 50 + "last\n")
    place = {"stage": "s", "attempt": 1, "rank": 0, "stream": "stdout"}
    lines = output_lines(tmp_path, {**place, "offset": 500, "skipped": 400, "text": "last\n"})
    assert counted(lines) == (1, 40, 0)
    assert (lines[0].is_note, lines[1].text) == (True, "last")
    assert counted(output_lines(tmp_path, {**place, "offset": 500, "text": "last\n"})) == (1, 0, 0)


def test_missing_file_is_empty(tmp_path: Path) -> None:
    assert tail(log(tmp_path / "none")) == ([], 0)


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


def test_filter_tells_whose_output_is_read() -> None:
    everything = OutputFilter(whole_lines=True, most=MOST_PRINTING)
    assert LogFilter().output() == everything
    assert LogFilter(stage="train", rank=2, stream="stderr").output() == OutputFilter(
        stage="train", rank=2, streams=("stderr",), whole_lines=True, most=MOST_PRINTING
    )
    last, next_one = MOST_PRINTING - 1, MOST_PRINTING
    for output in (everything.wants, lambda rank, stream: LogFilter().wants("s", rank, stream)):
        assert (output(last, "stdout"), output(next_one, "stdout")) == (True, False)
    assert LogFilter().wants("s", next_one, "messages")
    assert LogFilter(rank=next_one).wants("s", next_one, "stdout")
    assert OutputFilter(rank=next_one, most=MOST_PRINTING).wants(next_one, "stdout")
    assert OutputFilter().wants(next_one, "stdout")  # of the API
    assert LogFilter(stream="messages").output() is None


def test_numbers_are_no_lines() -> None:
    event = {"stage": "s", "rank": 1, "t": 3661.5}
    assert event_line({**event, "type": "metrics"}) is None
    line = event_line({**event, "type": "message", "level": "warning", "text": "<b>"})
    assert line is not None
    assert (line.source, line.text, line.css) == ("s/1 01:01:01.500Z", "<b>", "warn")
