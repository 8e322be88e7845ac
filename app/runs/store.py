"""The read side of runs: the list with keyset pagination, and the document of one run."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson
from sqlalchemy import ColumnElement, false, func, or_
from sqlalchemy import select as columns_of
from sqlmodel import Session, col, select

from app.db import HOLD
from app.runs.documents import CurrentProgress, Queue, RunDocument, RunList, RunSummary, current_stage
from app.runs.errors import NotFound
from app.runs.models import RankRow, Run, RunHistory, RunTag, StageAttempt
from app.runs.ordering import LARGEST_ID, Order, Place, parts, read_cursor, sorted_by, write_cursor
from app.runs.states import State
from app.runs.workers import live_workers

NO_WORKER: Final = "no worker is running: `ddp-audit worker` starts one"
PAGE_LIMIT: Final = 200
SEVERAL: Final = ("state", "kind", "verdict", "tag")
"""Filters with several values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilters:
    """Filters of a list of runs; empty fields filter nothing, several values of one field are alternatives."""

    state: Sequence[str] = ()
    kind: Sequence[str] = ()
    verdict: Sequence[str] = ()
    tag: Sequence[str] = ()
    """A run must have all of them."""
    pinned: bool | None = None
    q: str = ""
    """Part of the name, notes or a tag, case-insensitive; a number also finds the run with that number."""

    def digest(self) -> str:
        """Return a digest of these filters, independent of the order and repetition of their values."""
        several = {name: sorted({str(value) for value in getattr(self, name)}) for name in SEVERAL}
        given = orjson.dumps({**several, "pinned": self.pinned, "q": self.q.strip()}, option=orjson.OPT_SORT_KEYS)
        return hashlib.blake2b(given, digest_size=6).hexdigest()


def list_runs(
    session: Session,
    filters: RunFilters | None = None,
    *,
    order: Order = Order.NEWEST,
    cursor: str | None = None,
    limit: int = 50,
) -> RunList:
    """Return one page of runs. Raises Refused for a cursor that does not belong to these filters and this order."""
    filters = filters or RunFilters()
    owner = filters.digest()
    place = read_cursor(order, owner, cursor) if cursor else None
    limit = max(1, min(limit, PAGE_LIMIT))
    runs = _runs(session, filters, order, place, limit + 1)
    more, runs = len(runs) > limit, runs[:limit]
    ids = [run.id or 0 for run in runs]
    tags, progress = tags_of(session, ids), _progress_of(session, ids)
    items = [RunSummary.of(run, tags.get(run.id or 0, []), progress.get(run.id or 0)) for run in runs]
    return RunList(items=items, next_cursor=write_cursor(order, owner, runs[-1]) if more else None)


def _runs(session: Session, filters: RunFilters, order: Order, place: Place | None, most: int) -> list[Run]:
    """Return the runs after a place, in order."""
    query = select(Run).where(col(Run.deleting).is_(False), *_conditions(filters)).order_by(*sorted_by(order))
    found: list[Run] = []
    for part in parts(order, place):
        if len(found) < most:
            found += session.exec(query.where(*part).limit(most - len(found)))
    return found


def _conditions(filters: RunFilters) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    for column, values in ((Run.state, filters.state), (Run.kind, filters.kind), (Run.verdict, filters.verdict)):
        if values:
            conditions.append(col(column).in_(values))
    conditions += [col(Run.id).in_(select(RunTag.run_id).where(RunTag.tag == tag)) for tag in filters.tag]
    if filters.pinned is not None:
        conditions.append(col(Run.pinned).is_(filters.pinned))
    words = filters.q.strip()
    if words:
        text = [col(field).icontains(words, autoescape=True) for field in (Run.name, Run.notes)]
        tagged = select(RunTag.run_id).where(col(RunTag.tag).icontains(words, autoescape=True))
        matches = [*text, col(Run.id).in_(tagged)]
        number = words.removeprefix("#")
        if number.isascii() and number.isdigit() and int(number) <= LARGEST_ID:
            matches.append(col(Run.id) == int(number))
        # SQLite's LIKE ends at a NUL and would match everything; no stored text contains one.
        conditions.append(false() if "\0" in words else or_(*matches))
    return conditions


def tags_of(session: Session, ids: Sequence[int]) -> dict[int, list[str]]:
    """Return the tags of each run, sorted; runs without tags are absent."""
    found: dict[int, list[str]] = {}
    rows = select(RunTag.run_id, RunTag.tag).where(col(RunTag.run_id).in_(ids)).order_by(RunTag.tag)
    for run_id, tag in session.exec(rows):
        found.setdefault(run_id, []).append(tag)
    return found


def _progress_of(session: Session, ids: Sequence[int]) -> dict[int, CurrentProgress]:
    # Plain columns: rows as objects take most of a list's time.
    columns = [col(getattr(StageAttempt, name)) for name in ("run_id", "stage", "done", "total", "unit")]
    query = columns_of(*columns).where(columns[0].in_(ids), col(StageAttempt.attempt) > 0)
    rows = session.execute(query.order_by(col(StageAttempt.position), col(StageAttempt.attempt)))
    newest = {run_id: place for run_id, *place in rows}
    return {
        run_id: CurrentProgress(stage=stage, done=done, total=total, unit=unit)
        for run_id, (stage, done, total, unit) in newest.items()
    }


def count_runs(session: Session) -> list[tuple[str, str, int]]:
    """Return (kind, state, count) for every kind and state that occurs."""
    query = select(Run.kind, Run.state, func.count()).where(col(Run.deleting).is_(False))
    return [(kind, state, count) for kind, state, count in session.exec(query.group_by(col(Run.kind), col(Run.state)))]


def get_run(session: Session, run_id: int, *, hold: bool = False) -> Run:
    """Return the row of a run; with `hold` only this transaction may change it.

    Raises NotFound, also while it is being deleted.
    """
    run = session.get(Run, run_id, with_for_update=HOLD if hold else None) if 0 < run_id <= LARGEST_ID else None
    if run is None or run.deleting:
        raise NotFound("unknown_run", f"there is no run {run_id}; `ddp-audit list` shows the existing runs")
    return run


def get_run_document(session: Session, run_id: int) -> RunDocument:
    """Return the full document of a run, as `GET /runs/{id}` gives it. Raises NotFound."""
    run = get_run(session, run_id)
    stages = stages_of(session, run_id)
    return RunDocument.whole(
        run,
        tags=tags_of(session, [run_id]).get(run_id, []),
        stages=stages,
        ranks=ranks_of(session, current_stage(stages)),
        history=history_of(session, run_id),
        queue=queue_of(session, run),
    )


def stages_of(session: Session, run_id: int) -> list[StageAttempt]:
    """Return the stages of a run in order: every attempt, or the planned row (attempt 0) if there is none yet."""
    query = select(StageAttempt).where(StageAttempt.run_id == run_id)
    rows = list(session.exec(query.order_by(col(StageAttempt.position), col(StageAttempt.attempt))))
    started = {row.stage for row in rows if row.attempt > 0}
    return [row for row in rows if row.attempt > 0 or row.stage not in started]


def last_stage(session: Session, run_id: int) -> str | None:
    """Return the last active stage of a run, None before the first."""
    stage = current_stage(stages_of(session, run_id))
    return None if stage is None else stage.stage


def ranks_of(session: Session, stage: StageAttempt | None) -> list[RankRow]:
    """Return the ranks of one stage attempt in order."""
    if stage is None:
        return []
    query = select(RankRow).where(
        RankRow.run_id == stage.run_id, RankRow.stage == stage.stage, RankRow.attempt == stage.attempt
    )
    return list(session.exec(query.order_by(col(RankRow.rank))))


def history_of(session: Session, run_id: int, after: int = 0) -> list[RunHistory]:
    """Return the state changes of a run with a number above `after`, in order."""
    query = select(RunHistory).where(RunHistory.run_id == run_id, RunHistory.seq > after)
    return list(session.exec(query.order_by(col(RunHistory.seq))))


def queue_of(session: Session, run: Run) -> Queue | None:
    """Return the position of a waiting run (1 is next) and why it waits; None for any other run."""
    if run.state != State.QUEUED:
        return None
    earlier = select(func.count()).where(
        Run.state == State.QUEUED, col(Run.deleting).is_(False), col(Run.id) < (run.id or 0)
    )
    why = why_waiting(run, alive=bool(live_workers(session)))
    return Queue(position=session.exec(earlier).one() + 1, why=why)


def why_waiting(run: Run, *, alive: bool) -> str:
    """Return why a queued run waits, depending on whether any worker is alive."""
    if alive:
        return run.waiting_for or "a worker takes it within a second"
    return "; ".join(
        filter(None, [run.waiting_for, NO_WORKER])
    )  # without a live worker, its last reason is not the full answer
