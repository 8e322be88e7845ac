"""Rank files into the database: once, in order, only complete lines, with the offset in the same commit."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, event, update
from sqlalchemy.exc import OperationalError
from sqlmodel import col, select

from app.db import create_database_engine, read_session, write_session
from app.runs import queue
from app.runs.models import MalformedLine, MetricChunk, RankRow, Run, RunEvent, StageAttempt
from app.runs.telemetry.packing import pack, unpack
from app.schema import migrate
from app.settings import Settings
from trainer.contract.paths import AttemptPaths, RunPaths
from worker.intake import CHUNK_POINTS, Intake, LeaseLost
from worker.tail import READ_BYTES


class Desk:
    """One run with one attempt, its files and their content in the database."""

    def __init__(self, data_dir: Path) -> None:
        settings = Settings(data_dir=data_dir)
        migrate(settings)
        self.engine = create_database_engine(settings)
        with write_session(self.engine) as session:
            self.run_id = queue.number_of(queue.insert_run(session, kind="k", params={}, worker_id="me"))
            session.add(StageAttempt(run_id=self.run_id, stage="train", attempt=1, position=0, state="running"))
        self.paths: AttemptPaths = RunPaths(settings.runs_dir / str(self.run_id)).attempt("train", 1)
        self.paths.root.mkdir(parents=True)
        self.seq = 0

    def intake(self, worker_id: str = "me") -> Intake:
        return Intake(self.engine, run_id=self.run_id, worker_id=worker_id, stage="train", attempt=1, paths=self.paths)

    def write(self, data: bytes, rank: int = 0) -> None:
        with self.paths.events(rank).open("ab") as handle:
            handle.write(data)

    def event(self, kind: str, rank: int = 0, **fields: Any) -> bytes:
        line = json.dumps({"seq": self.seq, "t": 1000.0 + self.seq, "type": kind, **fields}).encode() + b"\n"
        self.seq += 1
        self.write(line, rank)
        return line

    def rows(self, query: Any) -> list[Any]:
        with read_session(self.engine) as session:
            found = list(session.exec(query))
            session.expunge_all()
            return found

    def lines(self) -> list[str]:
        rows = self.rows(select(RunEvent).order_by(col(RunEvent.id)))
        assert [row.id for row in rows] == list(range(1, len(rows) + 1))
        return [row.line + "\n" for row in rows]

    def series(self, key: str) -> list[float | None]:
        chunks = self.rows(select(MetricChunk).where(MetricChunk.key == key).order_by(col(MetricChunk.first_event_id)))
        return [value for chunk in chunks for value in unpack(chunk.steps, chunk.points)[1]]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.engine.dispose()


def drain(intake: Intake, *, final: bool = False) -> None:
    while intake.pull(final=final):
        pass


def test_lines_arrive_once_across_restarts(desk: Desk) -> None:
    written = []
    for part in range(3):
        written += [desk.event("message", level="info", text=f"{part}-{number} é") for number in range(4)]
        drain(desk.intake())
        drain(desk.intake())
    assert desk.lines() == [line.decode() for line in written]


def test_half_line_waits_until_whole(desk: Desk) -> None:
    desk.event("message", level="info", text="whole")
    intake = desk.intake()
    line = b'{"seq":1,"t":1,"type":"end"}\n'
    for cut in range(1, len(line)):
        desk.write(line[cut - 1 : cut])
        drain(intake)
        assert len(desk.lines()) == 1
    desk.write(line[-1:])
    drain(intake)
    assert len(desk.lines()) == 2
    assert not desk.rows(select(MalformedLine))


def test_torn_tail_is_kept_at_the_end(desk: Desk) -> None:
    desk.event("end")
    offset = desk.paths.events(0).stat().st_size
    desk.write(b'{"seq":1,"t":1,"ty')
    intake = desk.intake()
    drain(intake)
    assert not desk.rows(select(MalformedLine))
    drain(intake, final=True)
    [line] = desk.rows(select(MalformedLine))
    assert (line.offset, line.text) == (offset, '{"seq":1,"t":1,"ty')
    drain(desk.intake(), final=True)
    assert len(desk.rows(select(MalformedLine))) == 1


def test_failed_commit_changes_nothing(desk: Desk) -> None:
    desk.event("start", pid=5, host="h", device="cpu", backend="gloo", world_size=1, versions={})
    intake = desk.intake()
    drain(intake)
    lines = [desk.event("metrics", step=step, values={"a": float(step)}) for step in range(5)]

    def refuse(*_: Any) -> None:
        raise OperationalError("COMMIT", {}, Exception("database or disk is full"))

    event.listen(desk.engine, "commit", refuse)
    with pytest.raises(OperationalError, match="full"):
        intake.pull()
    event.remove(desk.engine, "commit", refuse)
    assert len(desk.lines()) == 1
    drain(intake)
    assert desk.lines()[1:] == [line.decode() for line in lines]
    assert desk.series("a") == [0, 1, 2, 3, 4]


def test_lost_lease_stores_nothing(desk: Desk) -> None:
    desk.event("end")
    with pytest.raises(LeaseLost):
        desk.intake("another").pull()
    assert desk.lines() == []
    drain(desk.intake())
    assert len(desk.lines()) == 1


def test_ranks_share_numbers_and_keep_order(desk: Desk) -> None:
    intake = desk.intake()
    for _ in range(3):
        for rank in (0, 1, 2):
            desk.event("message", rank, level="info", text=str(rank))
        drain(intake)
    rows = desk.rows(select(RunEvent).order_by(col(RunEvent.id)))
    assert [row.id for row in rows] == list(range(1, 10))
    for rank in (0, 1, 2):
        sequence = [json.loads(row.line)["seq"] for row in rows if row.rank == rank]
        assert sequence == sorted(sequence)
        assert len(sequence) == 3
    assert desk.rows(select(Run))[0].next_event_id == 10


def test_series_grow_in_few_rows(desk: Desk) -> None:
    intake = desk.intake()
    count = CHUNK_POINTS + 40
    for step in range(count):
        desk.event("metrics", step=step, values={"loss": step / 7, "null": None})
        if step % 10 == 0:
            drain(intake)
    drain(intake)
    assert desk.series("loss") == [step / 7 for step in range(count)]
    assert desk.series("null") == [None] * count
    chunks = desk.rows(select(MetricChunk).where(MetricChunk.key == "loss"))
    assert len(chunks) == 2
    assert sum(chunk.count for chunk in chunks) == count


def test_overlong_line_is_passed_over(desk: Desk) -> None:
    first = desk.event("message", level="info", text="before")
    desk.write(b'{"seq":1,"t":1,"type":"message","level":"info","text":"' + b"x" * (3 * READ_BYTES) + b'"}\n')
    last = desk.event("message", level="info", text="after")
    drain(desk.intake())
    assert desk.lines() == [first.decode(), last.decode()]
    [line] = desk.rows(select(MalformedLine))
    assert line.offset == len(first)
    assert "longer than" in line.why


def test_rank_and_stage_rows_follow(desk: Desk) -> None:
    desk.event("start", pid=5, host="h", device="cpu", backend="gloo", world_size=1, versions={})
    desk.event("phase", phase="train", step=3)
    desk.event("progress", done=3, total=8, unit="updates")
    desk.write(b"nonsense\n")
    drain(desk.intake())
    [row] = desk.rows(select(RankRow))
    assert (row.pid, row.host, row.device, row.phase, row.step) == (5, "h", "cpu", "train", 3)
    assert (row.events, row.malformed, row.offset) == (3, 1, desk.paths.events(0).stat().st_size)
    [stage] = desk.rows(select(StageAttempt))
    assert (stage.done, stage.total, stage.unit) == (3, 8, "updates")
    heard = desk.intake().ranks[0]
    assert (heard.started, heard.ended, heard.phase, heard.newest) == (True, False, "train", 1002.0)


def test_lost_commits_are_read_again(desk: Desk) -> None:
    """A server that loses its last commits, or is restored, goes back in time: the files have everything."""
    intake = desk.intake()
    written = [desk.event("metrics", step=step, values={"loss": 0.5}).decode() for step in range(3)]
    drain(intake)
    kept = desk.rows(select(RankRow))[0]
    written += [desk.event("metrics", step=step, values={"loss": 0.25}).decode() for step in range(3, 5)]
    drain(intake)
    with write_session(desk.engine) as session:
        session.execute(delete(RunEvent).where(col(RunEvent.id) > 3))
        session.execute(update(MetricChunk).values(count=3, steps=pack([0.0, 1.0, 2.0]), points=pack([0.5] * 3)))
        session.execute(update(RankRow).values(offset=kept.offset, events=kept.events))
        session.execute(update(Run).values(next_event_id=4))
    written.append(desk.event("metrics", step=5, values={"loss": 0.125}).decode())
    drain(intake)
    assert desk.lines() == written
    assert desk.series("loss") == [0.5, 0.5, 0.5, 0.25, 0.25, 0.125]
    assert desk.rows(select(RankRow))[0].events == 6
