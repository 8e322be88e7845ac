"""Database writes of the worker besides events: stages, attempts, ranks, state changes; each checks the lease."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, delete, update
from sqlmodel import Session, col, select

from app.clock import now
from app.db import put, read_session, write_session
from app.runs import queue
from app.runs.documents import traced
from app.runs.models import Meta, RankRow, Run, StageAttempt
from app.runs.outbox import record_checks
from app.runs.states import State
from trainer.contract.kinds import StagePlan
from trainer.contract.result import Result
from worker.claim import Me
from worker.executors.base import Reference
from worker.facts import Facts
from worker.hang import Stop
from worker.intake import LeaseLost
from worker.outcome import Outcome

NOT_STARTED: Final = 0
"""Attempt number of a planned stage."""
Place = tuple[str, int]
"""Stage and attempt."""
REST: Final = {State.CANCELLED: "cancelled"}
"""Final states of stages that never started; skipped unless listed here."""


def database_id(engine: Engine) -> str:
    """Return the random identity of this database, created on first use."""
    from uuid import uuid4

    with write_session(engine) as session:
        put(session, Meta(key="database_id", value=uuid4().hex), replace=False)
        return session.exec(select(Meta.value).where(Meta.key == "database_id")).one()


def load_run(engine: Engine, run_id: int) -> Run:
    """Return a copy of the current run. Raises queue.UnknownRun."""
    with read_session(engine) as session:
        run = queue.require_run(session, run_id)
        session.expunge(run)
        return run


def states(engine: Engine, run_ids: Iterable[int]) -> dict[int, Run]:
    """Return copies of the given runs in their current state."""
    with read_session(engine) as session:
        runs = session.exec(select(Run).where(col(Run.id).in_(list(run_ids)))).all()
        session.expunge_all()
        return {queue.number_of(run): run for run in runs}


def attempts(engine: Engine, run_id: int) -> list[StageAttempt]:
    """Return every attempt of a run, and its planned stages, in order."""
    with read_session(engine) as session:
        query = select(StageAttempt).where(StageAttempt.run_id == run_id)
        rows = session.exec(query.order_by(col(StageAttempt.position), col(StageAttempt.attempt))).all()
        session.expunge_all()
        return list(rows)


def owned(session: Session, run_id: int, me: Me) -> Run:
    """Return the run for writing: nobody else changes it until the end of the transaction.

    Raises LeaseLost if another worker owns it now, queue.UnknownRun.
    """
    run = queue.hold_run(session, run_id)
    if run.worker_id != me.id:
        raise LeaseLost(f"run {run_id} is no longer owned by this worker")
    return run


def make_run_folder(engine: Engine, run_id: int, me: Me, folder: Path) -> None:
    """Create the folder of a run that is about to start. Raises LeaseLost, queue.UnknownRun, OSError.

    The run is held meanwhile: a worker that was stopped until its run had ended elsewhere and was deleted
    must not bring it back.
    """
    with write_session(engine) as session:
        if State(owned(session, run_id, me).state).is_final:
            raise LeaseLost(f"run {run_id} has ended")
        folder.mkdir(parents=True, exist_ok=True)


def plan_stages(engine: Engine, run_id: int, me: Me, stages: Sequence[StagePlan]) -> None:
    """Record the planned stages."""
    with write_session(engine) as session:
        owned(session, run_id, me)
        known = set(session.exec(select(StageAttempt.stage).where(StageAttempt.run_id == run_id)))
        session.add_all(
            StageAttempt(run_id=run_id, stage=stage.name, attempt=NOT_STARTED, position=position, title=stage.title)
            for position, stage in enumerate(stages)
            if stage.name not in known
        )


def begin_attempt(engine: Engine, run_id: int, me: Me, stage: StagePlan, *, position: int, attempt: int) -> None:
    """Record that an attempt is about to start; called before any of its processes runs, and idempotent."""
    with write_session(engine) as session:
        owned(session, run_id, me)
        key = (run_id, stage.name, attempt)
        if session.get(StageAttempt, key) is None:
            row = StageAttempt(run_id=run_id, stage=stage.name, attempt=attempt, position=position, title=stage.title)
            row.state, row.started_at = "running", now()
            session.add(row)
        _remove_plan(session, run_id, stage.name)


def _remove_plan(session: Session, run_id: int, stage: str) -> None:
    session.execute(
        delete(StageAttempt).where(
            col(StageAttempt.run_id) == run_id,
            col(StageAttempt.stage) == stage,
            col(StageAttempt.attempt) == NOT_STARTED,
        )
    )


def note_reference(engine: Engine, run_id: int, me: Me, place: Place, reference: Reference) -> None:
    """Record the executor's reference to an attempt."""
    with write_session(engine) as session:
        owned(session, run_id, me)
        _update_attempt(session, run_id, *place, reference=dict(reference))


def note_start(engine: Engine, run_id: int, me: Me, place: Place, since: float) -> None:
    """Record when an attempt that had to wait began to run, in unix seconds."""
    with write_session(engine) as session:
        owned(session, run_id, me)
        _update_attempt(session, run_id, *place, started_at=datetime.fromtimestamp(since, UTC))


def note_waiting(engine: Engine, run_id: int, me: Me, place: Place, why: str) -> None:  # noqa: ARG001  # as the others
    """Show why a claimed run does not run yet; empty if it does."""
    with write_session(engine) as session:
        owned(session, run_id, me)
        session.execute(update(Run).where(col(Run.id) == run_id).values(waiting_for=why))


def note_diagnosis(engine: Engine, run_id: int, me: Me, place: Place, text: str) -> None:  # noqa: ARG001  # as the others
    """Record what is wrong with a run that continues."""
    with write_session(engine) as session:
        owned(session, run_id, me)
        session.execute(update(Run).where(col(Run.id) == run_id).values(diagnosis=text))


def end_attempt(session: Session, run_id: int, attempt: int, facts: Facts, state: str) -> None:
    """Record how an attempt and its ranks ended."""
    code = facts.main_exit_code if facts.main_signal is None else -facts.main_signal
    _update_attempt(session, run_id, facts.stage, attempt, state=state, exit_code=code, finished_at=now())
    for rank in facts.ranks:
        row = session.get(RankRow, (run_id, facts.stage, attempt, rank.rank)) or RankRow(
            run_id=run_id,
            stage=facts.stage,
            attempt=attempt,
            rank=rank.rank,
            local_rank=rank.local_rank or 0,
            pid=rank.pid,
        )
        row.exit_code, row.signal, row.stalled = rank.exit_code, rank.signal, False
        session.add(row)


def _update_attempt(session: Session, run_id: int, stage: str, attempt: int, **values: Any) -> None:
    session.execute(
        update(StageAttempt)
        .where(
            col(StageAttempt.run_id) == run_id, col(StageAttempt.stage) == stage, col(StageAttempt.attempt) == attempt
        )
        .values(**values)
    )


def close_attempt(engine: Engine, run_id: int, me: Me, *, attempt: int, facts: Facts, state: str) -> None:
    """Record the end of an attempt after which the run continues."""
    with write_session(engine) as session:
        owned(session, run_id, me)
        end_attempt(session, run_id, attempt, facts, state)


def mark_running(engine: Engine, run_id: int, me: Me) -> None:
    """Move a starting run to running, unless it is already stopping."""
    with write_session(engine) as session:
        if owned(session, run_id, me).state == State.STARTING:
            queue.move(session, run_id, State.STARTING, State.RUNNING, actor=me.id)


def flag_stalled(engine: Engine, run_id: int, me: Me, place: Place, flags: Mapping[int, bool]) -> None:
    """Flag ranks that have become silent, and unflag those that report again."""
    with write_session(engine) as session:
        owned(session, run_id, me)
        for rank, stalled in flags.items():
            session.execute(
                update(RankRow)
                .where(
                    col(RankRow.run_id) == run_id,
                    col(RankRow.stage) == place[0],
                    col(RankRow.attempt) == place[1],
                    col(RankRow.rank) == rank,
                )
                .values(stalled=stalled)
            )


def begin_stop(engine: Engine, run_id: int, me: Me, stop: Stop) -> None:
    """Move a run to stopping for a reason found by the worker; a run that is already stopping keeps its reason."""
    with write_session(engine) as session:
        state = State(owned(session, run_id, me).state)
        if state in {State.STARTING, State.RUNNING}:
            queue.move(
                session,
                run_id,
                state,
                State.STOPPING,
                note=f"{stop.reason}: every process is being ended",
                actor=me.id,
                stop_reason=stop.reason,
                failure=stop.failure,
                diagnosis=stop.diagnosis,
            )


class CancelCameFirst(Exception):
    """A cancel was requested in the meantime; the outcome has to be decided again."""


def finish(
    engine: Engine, run_id: int, me: Me, outcome: Outcome, facts: Facts, *, attempt: int, result: Result | None = None
) -> None:
    """Write the final state and everything that belongs to it in one transaction; from a `result`, verdict and checks.

    Raises CancelCameFirst if a stop was requested after `outcome` was decided.
    """
    with write_session(engine) as session:
        run = owned(session, run_id, me)
        state = State(run.state)
        asked = run.cancel_requested_at is not None
        if (asked and outcome.state is not State.CANCELLED) or (state is State.STOPPING and result is not None):
            raise CancelCameFirst
        if state is State.STARTING and outcome.state is State.SUCCEEDED:
            queue.move(session, run_id, state, State.RUNNING, actor=me.id)
            state = State.RUNNING
        if attempt != NOT_STARTED:
            end_attempt(session, run_id, attempt, facts, _attempt_state(outcome))
        _settle_stages(session, run_id, outcome)
        queue.move(
            session,
            run_id,
            state,
            outcome.state,
            reason=outcome.reason,
            note=_first_sentence(outcome.diagnosis),
            actor=me.id,
            failure=outcome.failure,
            diagnosis=outcome.diagnosis,
            verdict=None if result is None else str(result.verdict),
            **_measured_on(run, result),
        )
        if result is not None:  # a trend over many runs does not have to open their files
            record_checks(session, run_id, result.kind, result.checks)


def _measured_on(run: Run, result: Result | None) -> dict[str, Any]:
    """Return where a program of the user's ran, which nobody here decided."""
    if result is None or not traced(run):
        return {}
    return {"device": result.environment.device, "backend": result.environment.backend}


def _attempt_state(outcome: Outcome) -> str:
    if outcome.reason == "invalid_result":
        return "succeeded"  # the stage succeeded, but its output is not a valid result
    return {State.SUCCEEDED: "succeeded", State.CANCELLED: "cancelled"}.get(outcome.state, "failed")


def _settle_stages(session: Session, run_id: int, outcome: Outcome) -> None:
    of_run = update(StageAttempt).where(col(StageAttempt.run_id) == run_id)
    session.execute(of_run.where(col(StageAttempt.state) == "queued").values(state=REST.get(outcome.state, "skipped")))
    # Only an attempt that the worker could not handle is still open here.
    session.execute(
        of_run.where(col(StageAttempt.state) == "running").values(state=_attempt_state(outcome), finished_at=now())
    )


def _first_sentence(text: str) -> str:
    return text.split(". ", maxsplit=1)[0][:300]
