"""Stores rank files in the database: events, metric points, rank and stage rows and the byte offset in one commit."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Engine, update
from sqlmodel import Session, col, select

from app.db import HOLD, read_session, write_session
from app.runs.models import RankRow, Run, StageAttempt
from app.runs.telemetry.packing import pack
from trainer.contract.paths import AttemptPaths
from worker.lines import Heard, Points
from worker.log import log
from worker.rows import Rewound, Rows
from worker.tail import Cursor, Reading, Tails

CHUNK_POINTS: Final = 512
"""The newest chunk of a series grows to this many points before the next one is started."""


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
        rows = Rows()
        for reading in readings:
            self._take_events(rows, reading, next_id)
            grown |= self._take_metrics(rows, reading, next_id)
            self._take_rank(rows, reading)
            next_id += len(reading.batch.events)
        rows.write(session)
        session.execute(update(Run).where(col(Run.id) == self._run_id).values(next_event_id=next_id))
        self._store_progress(session, readings)
        return grown

    def _take_events(self, rows: Rows, reading: Reading, next_id: int) -> None:
        run_id, stage, attempt, rank = self._run_id, self._stage, self._attempt, reading.cursor.rank
        rows.events += [
            (run_id, number, stage, attempt, rank, event_type, line)
            for number, (event_type, line) in enumerate(reading.batch.events, next_id)
        ]
        rows.malformed += [(run_id, stage, attempt, rank, *aside) for aside in reading.batch.malformed]

    def _take_metrics(self, rows: Rows, reading: Reading, next_id: int) -> dict[tuple[int, str], OpenChunk]:
        grown: dict[tuple[int, str], OpenChunk] = {}
        rank = reading.cursor.rank
        for key, points in reading.batch.metrics.items():
            chunk = self._open.get((rank, key))
            if chunk is None or len(chunk.steps) + len(points.steps) > CHUNK_POINTS:
                chunk = OpenChunk(first_event_id=next_id + points.first, steps=points.steps, values=points.values)
                place = (self._run_id, chunk.first_event_id, key, rank, self._stage, self._attempt)
                rows.chunks.append((*place, len(chunk.steps), pack(chunk.steps), pack(chunk.values)))
            else:
                chunk = _extended(chunk, points)
                found = {"old_run_id": self._run_id, "old_first_event_id": chunk.first_event_id, "old_key": key}
                values = {"count": len(chunk.steps), "steps": pack(chunk.steps), "points": pack(chunk.values)}
                rows.grown.append({**found, **values})
            grown[rank, key] = chunk
        return grown

    def _take_rank(self, rows: Rows, reading: Reading) -> None:
        rank, values = reading.cursor.rank, _row_values(reading.after)
        place = {"run_id": self._run_id, "stage": self._stage, "attempt": self._attempt, "rank": rank}
        if reading.cursor.stored:
            found = {f"old_{name}": value for name, value in place.items()}
            rows.ranks.append({**found, "old_offset": reading.cursor.offset, **values})
        else:
            rows.new_ranks.append({**place, **values})
            reading.after.stored = True

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
