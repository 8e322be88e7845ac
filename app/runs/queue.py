"""The write side of runs: recording them, and changing their state by guarded updates with a history row each."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, update
from sqlmodel import Session, col, select

from app.clock import now
from app.db import HOLD
from app.runs.models import Run, RunHistory, RunTag
from app.runs.outbox import record_end
from app.runs.states import FINAL, Reason, State, check_move


class UnknownRun(LookupError):
    """There is no run with that number."""


class StaleState(RuntimeError):
    """The run was not in the expected state; nothing was changed."""


class AlreadyFinal(RuntimeError):
    """The run has ended; a final state is never overwritten."""


def insert_run(
    session: Session, *, tags: Sequence[str] = (), actor: str = "user", note: str = "", **fields: Any
) -> Run:
    """Record a queued run with its tags and the first row of its history, and return it with its number.

    `fields` are columns of `Run`; `created_at` defaults to now. Raises IntegrityError for an idempotency key that is
    already in use.
    """
    run = Run(**{"created_at": now(), **fields, "state": State.QUEUED})
    session.add(run)
    session.flush()
    run_id = number_of(run)
    session.add_all(RunTag(run_id=run_id, tag=tag) for tag in dict.fromkeys(tags))
    session.add(
        RunHistory(run_id=run_id, seq=1, at=run.created_at, origin=None, target=State.QUEUED, note=note, actor=actor)
    )
    session.flush()
    return run


def move(
    session: Session,
    run_id: int,
    expected: State,
    target: State,
    *,
    reason: Reason | None = None,
    note: str = "",
    actor: str,
    **columns: Any,
) -> None:
    """Move a run from `expected` to `target` and write the history row, both in the caller's transaction.

    `columns` are set together with the state. Starting sets `started_at`, a final state `finished_at` and
    `took_seconds`. Raises ForbiddenMove for a move that is not in the table, StaleState if the run is in another state
    by now.
    """
    check_move(expected, target, reason)
    moment = now()
    values = {"state": target, "reason": reason, **columns}
    if target is State.STARTING:
        values.setdefault("started_at", moment)
    if target.is_final:
        values |= {"finished_at": moment, "lease_until": None, "waiting_for": "", "gpus": columns.get("gpus", [])}
        values["took_seconds"] = _seconds_since_start(session, run_id, moment)
    guarded = update(Run).where(col(Run.id) == run_id, col(Run.state) == expected).values(**values)
    if session.execute(guarded).rowcount != 1:  # type: ignore[attr-defined]
        raise StaleState(f"run {run_id} is no longer {expected}; {expected} -> {target} was not made")
    seq = session.exec(select(func.max(RunHistory.seq)).where(RunHistory.run_id == run_id)).one() or 0
    session.add(
        RunHistory(
            run_id=run_id,
            seq=seq + 1,
            at=moment,
            origin=expected,
            target=target,
            reason=reason,
            note=note,
            actor=actor,
        )
    )
    session.flush()
    if target.is_final:
        record_end(session, run_id)


def _seconds_since_start(session: Session, run_id: int, moment: datetime) -> float | None:
    started = session.exec(select(Run.started_at).where(Run.id == run_id).with_for_update(**HOLD)).one_or_none()
    return None if started is None else (moment - started).total_seconds()


def number_of(run: Run) -> int:
    """Return the number of a recorded run. Raises ValueError for one that was never stored."""
    if run.id is None:
        raise ValueError("the run has no number yet: it was not stored")
    return run.id


def require_run(session: Session, run_id: int) -> Run:
    """Return the current row of a run from the database. Raises UnknownRun."""
    run = session.get(Run, run_id, populate_existing=True)
    if run is None:
        raise UnknownRun(f"there is no run {run_id}")
    return run


def hold_run(session: Session, run_id: int) -> Run:
    """Return the current row of a run that only this transaction may change until its end. Raises UnknownRun."""
    run = session.get(Run, run_id, populate_existing=True, with_for_update=HOLD)
    if run is None:
        raise UnknownRun(f"there is no run {run_id}")
    return run


def hold_runs(session: Session, run_ids: Sequence[int]) -> set[int]:
    """Return which of these runs exist; nobody else may change or delete them until the end of the transaction."""
    query = select(Run.id).where(col(Run.id).in_(run_ids)).order_by(col(Run.id))  # one order, or two would deadlock
    return {run_id for run_id in session.exec(query.with_for_update(**HOLD)) if run_id is not None}


def request_cancel(session: Session, run_id: int, actor: str = "user") -> Run:
    """Request the cancellation of a run and return it.

    A queued run is cancelled at once. A started one becomes `stopping`; its worker ends every process and only then
    writes the final state. A run that is stopping for another reason keeps stopping, and the cancel wins at the end.
    Raises UnknownRun, AlreadyFinal.
    """
    run = hold_run(session, run_id)
    state = State(run.state)
    if state in FINAL:
        raise AlreadyFinal(f"run {run_id} has ended ({state}); there is nothing to cancel")
    if state is State.QUEUED:
        move(
            session,
            run_id,
            state,
            State.CANCELLED,
            reason=Reason.CANCELLED_BY_USER,
            note="cancelled while it waited; no process had been started",
            actor=actor,
            cancel_requested_at=now(),
            diagnosis="Cancelled while it waited in the queue; no process had been started and no device was in use.",
        )
    elif state is not State.STOPPING:
        note = "cancel requested; every process is being ended"
        move(session, run_id, state, State.STOPPING, note=note, actor=actor, cancel_requested_at=now())
    elif run.cancel_requested_at is None:
        run.cancel_requested_at = now()
        session.add(run)
        session.flush()
    return require_run(session, run_id)
