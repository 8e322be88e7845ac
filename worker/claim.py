"""Claims runs from the queue in one transaction (admission, state, lease), renews leases, writes heartbeats."""

import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Engine, delete, update
from sqlmodel import Session, col, select

from app.db import HOLD, Lock, database_time, lock, read_session, write_session
from app.host.processes import Identity
from app.runs import queue
from app.runs.models import Run, WorkerRow
from app.runs.states import Reason, State
from app.runs.workers import live_workers
from trainer.contract.placement import Offer
from worker import admission
from worker.admission import Demand, Refuse, Start, Supply, Wait
from worker.outcome import failure_document

ACTIVE: Final = (State.STARTING, State.RUNNING, State.STOPPING)
LEASE_SECONDS: Final = 15.0
LOOKED_AT: Final = 200
"""Queued runs considered at a time, oldest first."""
STALE_ROWS_DAYS: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Me:
    """Name of this worker in the database."""

    id: str
    process: Identity
    host: str = socket.gethostname()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The devices of this worker."""

    offer: Offer
    busy: dict[int, str]
    max_cpu_runs: int
    max_jobs: int = 1
    """Active runs of workers that use a scheduler."""


def lease(session: Session) -> datetime:
    """Return the expiry time of a lease granted now, by the clock of the database."""
    return database_time(session) + timedelta(seconds=LEASE_SECONDS)


def claim(engine: Engine, me: Me, machine: Machine, *, only: int | None = None) -> int | None:
    """Claim the first queued run that may start and return its number, or None.

    Runs that can never start end here as `no_devices`; `waiting_for` of the others is updated. With `only`, all other
    runs are ignored.
    """
    with read_session(engine) as session:
        decisions = _decide(session, me, machine, only)
        if all(isinstance(decision, Wait) and decision.why == run.waiting_for for run, decision in decisions):
            return None
    with write_session(engine) as session:
        lock(session, Lock.ADMISSION)
        return _claim_first(session, me, machine, only)


def _claim_first(session: Session, me: Me, machine: Machine, only: int | None) -> int | None:
    busy: set[int] = set()
    while True:
        for run, decision in _decide(session, me, machine, only, without=busy):
            if isinstance(decision, Wait) and decision.why == run.waiting_for:
                continue
            if not _hold(session, run):
                busy.add(queue.number_of(run))
                break
            if _apply(session, me, run, decision):
                return run.id
        else:
            return None


def _hold(session: Session, run: Run) -> bool:
    """Return whether a queued run is ours to change; not while somebody else is cancelling or editing it."""
    held = select(Run.id).where(Run.id == run.id, Run.state == State.QUEUED)
    return session.exec(held.with_for_update(**HOLD, skip_locked=True)).first() is not None


def _decide(
    session: Session, me: Me, machine: Machine, only: int | None, *, without: Collection[int] = ()
) -> list[tuple[Run, admission.Decision]]:
    query = select(Run).where(Run.state == State.QUEUED).order_by(col(Run.id)).limit(LOOKED_AT)
    if without:
        query = query.where(col(Run.id).not_in(without))
    queued = session.exec(query if only is None else query.where(Run.id == only)).all()
    if not queued:
        return []
    supply = _supply(session, me, machine)
    ahead: dict[str, int] = {}
    decisions: list[tuple[Run, admission.Decision]] = []
    for run in queued:
        demand = Demand.of(queue.number_of(run), run.params, run.launch)
        decision = admission.admit(demand, supply)
        if not isinstance(decision, Refuse):
            first = ahead.setdefault(admission.resource_of(decision, demand, supply), demand.run_id)
            if first != demand.run_id:
                decision = Wait(f"run {first} is ahead of it for the same devices")
        decisions.append((run, decision))
    return decisions


def _apply(session: Session, me: Me, run: Run, decision: admission.Decision) -> bool:
    """Carry out a decision and return whether the run was claimed."""
    run_id = queue.number_of(run)
    if isinstance(decision, Start):
        queue.move(
            session,
            run_id,
            State.QUEUED,
            State.STARTING,
            note=f"on {decision.device} with {decision.backend}" + (f", GPUs {decision.gpus}" if decision.gpus else ""),
            actor=me.id,
            worker_id=me.id,
            lease_until=lease(session),
            device=decision.device,
            backend=decision.backend,
            gpus=list(decision.gpus),
            waiting_for="",
        )
        return True
    if isinstance(decision, Refuse):
        queue.move(
            session,
            run_id,
            State.QUEUED,
            State.FAILED,
            reason=Reason.NO_DEVICES,
            note="not enough devices",
            actor=me.id,
            failure=failure_document(last_line=decision.why),
            diagnosis=decision.why,
        )
    elif run.waiting_for != decision.why:
        session.execute(update(Run).where(col(Run.id) == run_id).values(waiting_for=decision.why))
    return False


def _supply(session: Session, me: Me, machine: Machine) -> Supply:
    active = session.exec(select(Run).where(col(Run.state).in_(ACTIVE)).order_by(col(Run.id))).all()
    workers = session.exec(select(WorkerRow)).all()
    scheduled = {row.id for row in workers if Offer.of(row.devices).scheduler}
    elsewhere = scheduled | {row.id for row in workers if row.host != me.host}
    return Supply(
        offer=machine.offer,
        busy=machine.busy,
        held={gpu: queue.number_of(run) for run in active if run.worker_id not in elsewhere for gpu in run.gpus},
        cpu_runs=[queue.number_of(run) for run in active if run.device == "cpu" and run.worker_id not in scheduled],
        max_cpu_runs=machine.max_cpu_runs,
        jobs=sum(run.worker_id in scheduled for run in active),
        max_jobs=machine.max_jobs,
        others=[Offer.of(row.devices) for row in live_workers(session) if row.id != me.id],
    )


def heartbeat(engine: Engine, me: Me, runs: Sequence[int], **published: Any) -> list[int]:
    """Write the heartbeat, publish the devices, renew the leases; return the runs that this worker still owns."""
    with write_session(engine) as session:
        moment = database_time(session)
        row = session.get(WorkerRow, me.id) or WorkerRow(
            id=me.id,
            pid=me.process.pid,
            pid_start=me.process.start,
            boot_id=me.process.boot,
            host=me.host,
            started_at=moment,
            heartbeat_at=moment,
        )
        row.heartbeat_at = moment
        for name, value in published.items():
            setattr(row, name, value)
        session.add(row)
        mine = col(Run.worker_id) == me.id
        session.execute(update(Run).where(mine, col(Run.id).in_(runs)).values(lease_until=lease(session)))
        owned = list(session.exec(select(Run.id).where(mine, col(Run.id).in_(runs))))
    return [run_id for run_id in owned if run_id is not None]


def sign_off(engine: Engine, me: Me) -> None:
    """Release all runs, so that the next worker takes over immediately."""
    with write_session(engine) as session:
        session.execute(update(Run).where(col(Run.worker_id) == me.id).values(lease_until=database_time(session)))
        session.execute(delete(WorkerRow).where(col(WorkerRow.id) == me.id))


def forget_old_workers(engine: Engine) -> None:
    """Remove rows of workers without a heartbeat for a week."""
    with write_session(engine) as session:
        oldest = database_time(session) - timedelta(days=STALE_ROWS_DAYS)
        session.execute(delete(WorkerRow).where(col(WorkerRow.heartbeat_at) < oldest))


def anything_queued(engine: Engine) -> bool:
    """Return whether a run is waiting."""
    with read_session(engine) as session:
        return session.exec(select(Run.id).where(Run.state == State.QUEUED).limit(1)).first() is not None
