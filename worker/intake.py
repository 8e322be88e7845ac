"""Stores rank files in the database: events, metric points, rank and stage rows and the byte offset in one commit."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Engine, insert, update
from sqlmodel import Session, SQLModel, col, select

from app.db import HOLD, insert_rows, read_session, table_of, write_session
from app.runs.models import MalformedLine, MetricChunk, RankRow, Run, RunEvent, StageAttempt
from app.runs.telemetry.packing import pack
from trainer.contract.paths import AttemptPaths
from worker.lines import Heard, Points
from worker.log import log
from worker.tail import Cursor, Reading, Tails

CHUNK_POINTS: Final = 512
"""The newest chunk of a series grows to this many points before the next one is started."""


class Rewound(RuntimeError):
    """The database has less than was stored: a server lost its last commits, or was restored. Nothing was written."""


class LeaseLost(RuntimeError):
    """Another worker owns the run now; nothing was written."""


@dataclass(slots=True, kw_only=True)
class OpenChunk:
    """The newest chunk of a series, which is still growing."""

    first_event_id: int
    steps: list[float]
    values: list[float]


class Intake:
    """Reads the files of one attempt. Every call of `pull` stores what was written since the last one."""

    def __init__(
        self, engine: Engine, *, run_id: int, worker_id: str, stage: str, attempt: int, paths: AttemptPaths
    ) -> None:
        self._engine, self._run_id, self._worker_id = engine, run_id, worker_id
        self._stage, self._attempt, self._paths = stage, attempt, paths
        self._open: dict[tuple[int, str], OpenChunk] = {}
        self._doubtful = False
        self._load()

    @property
    def ranks(self) -> dict[int, Heard]:
        """What each rank with a file has reported so far."""
        return {rank: cursor.heard for rank, cursor in sorted(self._tails.cursors.items())}

    def pull(self, *, final: bool = False) -> bool:
        """Store a limited amount of new lines and return whether there may be more.

        With `final` (the attempt has ended), an incomplete last line is stored as malformed.
        Raises LeaseLost, and sqlalchemy.exc.OperationalError if the database is locked or full; then nothing changed.
        """
        if self._doubtful:
            self._load()
        readings = self._tails.read(final=final)
        if not readings:
            return False
        self._doubtful = True  # until the commit has succeeded
        try:
            with write_session(self._engine) as session:
                grown = self._store(session, readings)
        except Rewound as error:
            log.warning("reading events again", action="events-rewound", run_id=self._run_id, why=str(error))
            return True
        self._doubtful = False
        self._open.update(grown)
        for key in [key for key, chunk in self._open.items() if len(chunk.steps) >= CHUNK_POINTS]:
            del self._open[key]
        self._tails.accept(readings)
        return True

    def _load(self) -> None:
        """Take the positions from the database, which after a failure alone knows what it has stored."""
        query = select(RankRow).where(
            RankRow.run_id == self._run_id, RankRow.stage == self._stage, RankRow.attempt == self._attempt
        )
        with read_session(self._engine) as session:
            found = [self._cursor(row) for row in session.exec(query)]
        self._tails = Tails(self._paths)
        self._tails.cursors.update({cursor.rank: cursor for cursor in found})
        self._open.clear()
        self._doubtful = False

    def _cursor(self, row: RankRow) -> Cursor:
        return Cursor(
            rank=row.rank,
            path=self._paths.events(row.rank),
            offset=row.offset,
            events=row.events,
            malformed=row.malformed,
            stored=True,
            heard=_heard_of(row),
        )

    def _store(self, session: Session, readings: list[Reading]) -> dict[tuple[int, str], OpenChunk]:
        owner = select(Run.next_event_id, Run.worker_id).where(Run.id == self._run_id).with_for_update(**HOLD)
        found = session.exec(owner).one_or_none()
        if found is None or found[1] != self._worker_id:
            raise LeaseLost(f"run {self._run_id} is no longer owned by this worker")
        next_id = found[0]
        grown: dict[tuple[int, str], OpenChunk] = {}
        for reading in readings:
            self._store_events(session, reading, next_id)
            grown |= self._store_metrics(session, reading, next_id)
            self._store_malformed(session, reading)
            self._store_rank(session, reading.after, before=reading.cursor.offset)
            next_id += len(reading.batch.events)
        session.execute(update(Run).where(col(Run.id) == self._run_id).values(next_event_id=next_id))
        self._store_progress(session, readings)
        return grown

    def _store_events(self, session: Session, reading: Reading, next_id: int) -> None:
        run_id, stage, attempt, rank = self._run_id, self._stage, self._attempt, reading.cursor.rank
        rows = [
            (run_id, number, stage, attempt, rank, event_type, line)
            for number, (event_type, line) in enumerate(reading.batch.events, next_id)
        ]
        insert_rows(
            session.connection(), table_of(RunEvent), ("run_id", "id", "stage", "attempt", "rank", "type", "line"), rows
        )

    def _store_metrics(self, session: Session, reading: Reading, next_id: int) -> dict[tuple[int, str], OpenChunk]:
        grown: dict[tuple[int, str], OpenChunk] = {}
        new, rank = [], reading.cursor.rank
        for key, points in reading.batch.metrics.items():
            chunk = self._open.get((rank, key))
            if chunk is None or len(chunk.steps) + len(points.steps) > CHUNK_POINTS:
                chunk = OpenChunk(first_event_id=next_id + points.first, steps=points.steps, values=points.values)
                new.append(self._chunk_row(rank, key, chunk))
            else:
                chunk = _extended(chunk, points)
                self._rewrite(session, key, chunk)
            grown[rank, key] = chunk
        columns = ("run_id", "first_event_id", "key", "rank", "stage", "attempt", "count", "steps", "points")
        _insert(session, MetricChunk, columns, new)
        return grown

    def _chunk_row(self, rank: int, key: str, chunk: OpenChunk) -> tuple[Any, ...]:
        place = (self._run_id, chunk.first_event_id, key, rank, self._stage, self._attempt)
        return (*place, len(chunk.steps), pack(chunk.steps), pack(chunk.values))

    def _rewrite(self, session: Session, key: str, chunk: OpenChunk) -> None:
        session.execute(
            update(MetricChunk)
            .where(
                col(MetricChunk.run_id) == self._run_id,
                col(MetricChunk.first_event_id) == chunk.first_event_id,
                col(MetricChunk.key) == key,
            )
            .values(count=len(chunk.steps), steps=pack(chunk.steps), points=pack(chunk.values))
        )

    def _store_malformed(self, session: Session, reading: Reading) -> None:
        place = (self._run_id, self._stage, self._attempt, reading.cursor.rank)
        rows = [(*place, *aside) for aside in reading.batch.malformed]
        insert_rows(
            session.connection(),
            table_of(MalformedLine),
            ("run_id", "stage", "attempt", "rank", "offset", "text", "why"),
            rows,
        )

    def _store_rank(self, session: Session, cursor: Cursor, *, before: int) -> None:
        place = {"run_id": self._run_id, "stage": self._stage, "attempt": self._attempt, "rank": cursor.rank}
        values = _row_values(cursor)
        if not cursor.stored:
            session.execute(insert(RankRow).values(**place, **values))
            cursor.stored = True
            return
        matches = [getattr(RankRow, name) == value for name, value in place.items()]
        # At the expected position, or the events between would be missing, or be there twice.
        changed: Any = session.execute(update(RankRow).where(*matches, col(RankRow.offset) == before).values(**values))
        if changed.rowcount != 1:
            raise Rewound(f"rank {cursor.rank} was not stored up to byte {before}")

    def _store_progress(self, session: Session, readings: list[Reading]) -> None:
        told = [reading.after for reading in readings if reading.after.heard.progress is not None]
        if not told:
            return
        progress = min(told, key=lambda cursor: cursor.rank).heard.progress
        if progress is None:
            return
        done, total, unit = progress
        session.execute(
            update(StageAttempt)
            .where(
                col(StageAttempt.run_id) == self._run_id,
                col(StageAttempt.stage) == self._stage,
                col(StageAttempt.attempt) == self._attempt,
            )
            .values(done=done, total=total, unit=unit)
        )


def _extended(chunk: OpenChunk, points: Points) -> OpenChunk:
    # A copy: the transaction may still fail, and the chunk in memory must match the database.
    return replace(chunk, steps=chunk.steps + points.steps, values=chunk.values + points.values)


def _row_values(cursor: Cursor) -> dict[str, Any]:
    heard = cursor.heard
    return {
        "pid": heard.pid,
        "host": heard.host,
        "node": heard.node or heard.host,
        "local_rank": cursor.rank if heard.local_rank is None else heard.local_rank,
        "device": heard.device,
        "phase": heard.phase,
        "step": heard.step,
        "last_seen": datetime.fromtimestamp(heard.newest, UTC) if heard.newest else None,
        "stalled": False,
        "offset": cursor.offset,
        "events": cursor.events,
        "malformed": cursor.malformed,
    }


def _heard_of(row: RankRow) -> Heard:
    newest = row.last_seen.timestamp() if row.last_seen else 0.0
    return Heard(
        started=row.pid is not None,
        started_at=newest if row.pid is not None else None,
        pid=row.pid,
        host=row.host,
        node=row.node,
        local_rank=row.local_rank,
        device=row.device,
        phase=row.phase,
        step=row.step,
        ended=row.phase == "end",
        newest=newest,
    )


def _insert(session: Session, model: type[SQLModel], columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    insert_rows(session.connection(), table_of(model), columns, rows)
