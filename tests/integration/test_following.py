"""One reading of a run for all its followers: filters, complete lines, floods, and every item exactly once."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlmodel import select

from app.clock import now
from app.db import read_session, write_session
from app.runs import queue
from app.runs.errors import NotFound
from app.runs.models import StageAttempt
from app.runs.states import Reason, State
from app.runs.telemetry.cursor import START, Cursor
from app.runs.telemetry.feed import FLOOD_BYTES, pull
from app.runs.telemetry.following import follow
from app.runs.telemetry.items import EVERYTHING, EventFilter, Item, OutputFilter, Reading, Wanted
from app.settings import Settings
from app.web.runlog.lines import LogFilter, output_lines
from app.web.runlog.tail import LogView, render_tail
from tests.support.pages_data import add_events, add_run, add_stages, write_log

LINES = Wanted(moves=False, events=None, output=OutputFilter(whole_lines=True))


@pytest.fixture
def run_id(engine: Engine) -> int:
    number = add_run(engine, "running", moves=("starting",))
    add_stages(engine, number, {"prepare": "succeeded", "train": "running"})
    return number


@pytest.fixture
def read(engine: Engine, settings: Settings, run_id: int) -> Any:
    def once(cursor: Cursor = START, wanted: Wanted = EVERYTHING) -> Reading:
        with read_session(engine) as session:
            return pull(session, settings.runs_dir, run_id, cursor, wanted)

    return once


def say(engine: Engine, run_id: int, *events: dict[str, Any], stage: str = "train") -> None:
    with write_session(engine) as session:
        add_events(session, run_id, stage, events)


def finish(engine: Engine, run_id: int) -> None:
    with write_session(engine) as session:
        for row in session.exec(select(StageAttempt).where(StageAttempt.run_id == run_id)):
            row.finished_at, row.state = now(), "succeeded"
        queue.move(
            session, run_id, State.RUNNING, State.SUCCEEDED, reason=Reason.COMPLETED, verdict="pass", actor="worker"
        )


def kinds(reading: Reading) -> list[str]:
    return [item.type for item in reading.items]


def test_filters_leave_out_and_lose_nothing(engine: Engine, settings: Settings, run_id: int, read: Any) -> None:
    say(engine, run_id, *({"type": "phase", "phase": "a", "step": n, "rank": n % 2} for n in range(4)))
    say(engine, run_id, {"type": "message", "level": "info", "text": "hello", "rank": 1})
    for rank in range(2):
        write_log(settings, run_id, "train", rank, f"rank {rank}\n")
    one = read(wanted=Wanted(events=EventFilter(rank=1), output=OutputFilter(rank=1)))
    assert [item.data["id"] for item in one.items if item.type == "event"] == [2, 4, 5]
    assert [item.data["text"] for item in one.items if item.type == "log"] == ["rank 1\n"]
    assert kinds(one).count("state") == 3
    message = read(wanted=Wanted(moves=False, events=EventFilter(type="message"), output=None))
    assert [item.data["text"] for item in message.items] == ["hello"]
    assert kinds(read(wanted=Wanted(events=EventFilter(stage="prepare"), output=None))) == ["state"] * 3
    streams = read(wanted=Wanted(moves=False, events=None, output=OutputFilter(streams=("stderr",))))
    assert streams.items == []


def test_what_a_filter_left_out_is_not_looked_through_again(engine: Engine, run_id: int, read: Any) -> None:
    say(engine, run_id, *({"type": "phase", "phase": "a", "step": n} for n in range(600)))
    errors = Wanted(moves=False, events=EventFilter(type="error"), output=None)
    assert (read(wanted=errors).items, read(wanted=errors).cursor.event) == ([], 600)
    everything = Wanted(moves=False, output=None)
    first = read(wanted=everything)
    assert (len(first.items), first.cursor.event) == (500, 500)  # what does not fit into one reading comes in the next
    assert len(read(first.cursor, everything).items) == 100
    assert read(wanted=LINES).cursor.event == 0  # a reader without events has seen none


def test_whole_lines_wait_for_their_end(engine: Engine, settings: Settings, run_id: int, read: Any) -> None:
    write_log(settings, run_id, "train", 0, "one\ntw")
    first = read(wanted=LINES)
    assert [item.data["text"] for item in first.items] == ["one\n"]
    assert read(first.cursor, LINES).items == []
    assert read(wanted=Wanted(moves=False, events=None)).items[0].data["text"] == "one\ntw"
    write_log(settings, run_id, "train", 0, "o\nthree")
    second = read(first.cursor, LINES)
    assert [item.data["text"] for item in second.items] == ["two\n"]
    finish(engine, run_id)
    last = read(second.cursor, LINES)
    assert [(item.data["text"], item.data["ended"]) for item in last.items] == [("three", True)]
    assert kinds(read(last.cursor, LINES)) == ["end"]


def test_endless_line_does_not_hold_up_what_follows(settings: Settings, run_id: int, read: Any) -> None:
    write_log(settings, run_id, "train", 0, "x" * 5000)
    first = read(wanted=LINES)
    assert first.items[0].data["text"] == "x" * 5000
    write_log(settings, run_id, "train", 0, "y\nnext\n")
    assert [item.data["text"] for item in read(first.cursor, LINES).items] == ["y\nnext\n"]


@pytest.mark.parametrize("whole_lines", [False, True])
def test_flood_is_skipped_to_a_line(settings: Settings, run_id: int, read: Any, whole_lines: bool) -> None:
    line = "ünïcödé " * 9 + "\n"
    path = write_log(settings, run_id, "train", 0, line * (2 * FLOOD_BYTES // len(line.encode())))
    item = read(wanted=Wanted(moves=False, events=None, output=OutputFilter(whole_lines=whole_lines))).items[0]
    assert item.data["skipped"] == item.data["offset"] > FLOOD_BYTES
    assert item.data["text"].startswith("ünïcödé")
    assert item.data["next_offset"] == path.stat().st_size
    lines = output_lines(settings.runs_dir / str(run_id), item.data)
    assert lines[0].left_lines + len(lines) - 1 == 2 * FLOOD_BYTES // len(line.encode())


def test_output_of_a_rank_that_never_reported_is_read(settings: Settings, run_id: int, read: Any) -> None:
    write_log(settings, run_id, "train", 5, "ImportError\n", stream="stderr")
    write_log(settings, run_id, "train", 4096, "no rank of any run\n", stream="stderr")
    assert [(item.data["rank"], item.data["text"]) for item in read(wanted=LINES).items] == [(5, "ImportError\n")]


def rendered(engine: Engine, settings: Settings, run_id: int, wanted: LogFilter) -> LogView:
    with read_session(engine) as session:
        return render_tail(session, settings.runs_dir, run_id, wanted)


@pytest.mark.parametrize(
    "wanted", [LogFilter(), LogFilter(rank=1), LogFilter(stage="prepare"), LogFilter(stream="stderr")]
)
def test_page_goes_on_exactly_where_it_was_rendered(
    engine: Engine, settings: Settings, run_id: int, read: Any, wanted: LogFilter
) -> None:
    def write(number: int, end: str) -> None:
        for rank in range(2):
            write_log(settings, run_id, "train", rank, f"out {rank} {number}{end}")
            write_log(settings, run_id, "train", rank, f"err {rank} {number}\n", stream="stderr")
        say(engine, run_id, {"type": "message", "level": "info", "text": f"message {number}"})

    for rank in range(2):
        write_log(settings, run_id, "prepare", rank, f"prepared {rank}")  # its last line has no line break
    write(1, "")
    page = rendered(engine, settings, run_id, wanted)
    write(2, "\n")
    asked = Wanted(moves=False, output=wanted.output())
    reading = read(page.cursor, asked)
    assert read(reading.cursor, asked).items == []
    seen = [line.text for line in page.lines]
    for item in reading.items:
        seen += item.data["text"].splitlines() if item.type == "log" else [item.data["text"]]
    expected = [f"prepared {rank}" for rank in range(2) if wanted.wants("prepare", rank, "stdout")]
    for rank in range(2):
        expected += [f"err {rank} 1", f"err {rank} 2"] if wanted.wants("train", rank, "stderr") else []
        expected += [f"out {rank} 1out {rank} 2"] if wanted.wants("train", rank, "stdout") else []
    assert sorted(line for line in seen if "message" not in line) == sorted(expected)
    assert "message 2" in seen


def heard(stream: Iterator[list[Item]], kind: str) -> list[Item]:
    """Return the items up to the first one of a type."""
    items: list[Item] = []
    for some in stream:
        items += some
        if any(item.type == kind for item in some):
            return items
    return items


def test_follower_in_the_process_ends_with_the_run(engine: Engine, settings: Settings, run_id: int) -> None:
    stream = follow(engine, settings.runs_dir, run_id, START)
    assert [item.type for item in heard(stream, "state")] == ["state"] * 3
    assert next(stream) == []  # still there
    say(engine, run_id, {"type": "message", "level": "info", "text": "hello"})
    assert heard(stream, "event")[-1].data["text"] == "hello"
    write_log(settings, run_id, "train", 0, "printed")
    assert heard(stream, "log")[-1].data["text"] == "printed"
    finish(engine, run_id)
    assert [item.type for item in heard(stream, "end")] == ["state", "end"]
    assert list(stream) == []
    with pytest.raises(NotFound):
        next(follow(engine, settings.runs_dir, 999, START))


def test_place_past_the_end_has_nothing_to_follow(engine: Engine, settings: Settings, run_id: int) -> None:
    finish(engine, run_id)
    items = heard(follow(engine, settings.runs_dir, run_id, START), "end")
    assert list(follow(engine, settings.runs_dir, run_id, items[-1].cursor)) == []
