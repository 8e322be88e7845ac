"""The write side of runs on a real database: guarded state changes, history, cancel."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlmodel import col, select

from app.clock import now
from app.db import create_database_engine, read_session, write_session
from app.runs import queue
from app.runs.models import Run, RunHistory, RunTag, WorkerRow
from app.runs.states import ForbiddenMove, Reason, State
from app.runs.workers import live_workers
from app.schema import migrate
from app.settings import Settings


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    settings = Settings(data_dir=tmp_path)
    migrate(settings)
    engine = create_database_engine(settings)
    yield engine
    engine.dispose()


def insert(engine: Engine) -> int:
    with write_session(engine) as session:
        run = queue.insert_run(session, kind="token-parity", params={"seed": 1}, tags=["a", "b", "a"], name="n")
        assert run.id is not None
        return run.id


def history(engine: Engine, run_id: int) -> list[tuple[int, str | None, str, str | None]]:
    with read_session(engine) as session:
        rows = session.exec(select(RunHistory).where(RunHistory.run_id == run_id).order_by(col(RunHistory.seq)))
        return [(row.seq, row.origin, row.target, row.reason) for row in rows]


def load(engine: Engine, run_id: int) -> Run:
    with read_session(engine) as session:
        run = queue.require_run(session, run_id)
        session.expunge(run)
        return run


def test_insert_writes_tags_and_history(engine: Engine) -> None:
    run_id = insert(engine)
    assert history(engine, run_id) == [(1, None, "queued", None)]
    with read_session(engine) as session:
        assert sorted(session.exec(select(RunTag.tag))) == ["a", "b"]


def test_moves_are_recorded_in_order(engine: Engine) -> None:
    run_id = insert(engine)
    with write_session(engine) as session:
        queue.move(session, run_id, State.QUEUED, State.STARTING, actor="w", worker_id="w", gpus=[0])
        queue.move(session, run_id, State.STARTING, State.RUNNING, actor="w")
        queue.move(session, run_id, State.RUNNING, State.SUCCEEDED, reason=Reason.COMPLETED, actor="w", verdict="pass")
    run = load(engine, run_id)
    assert (run.state, run.reason, run.verdict) == ("succeeded", "completed", "pass")
    assert run.started_at is not None
    assert run.finished_at is not None
    assert run.finished_at >= run.started_at
    assert run.took_seconds == (run.finished_at - run.started_at).total_seconds()
    assert run.gpus == []
    assert [row[2] for row in history(engine, run_id)] == ["queued", "starting", "running", "succeeded"]
    assert [row[0] for row in history(engine, run_id)] == [1, 2, 3, 4]


def test_time_taken_is_known_at_the_end_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    going_on, never_started = insert(engine), insert(engine)
    ended = now()
    started = ended - timedelta(seconds=90)
    monkeypatch.setattr("app.runs.queue.now", lambda: ended)
    with write_session(engine) as session:
        queue.move(session, going_on, State.QUEUED, State.STARTING, actor="w", started_at=started)
    assert load(engine, going_on).took_seconds is None
    with write_session(engine) as session:
        queue.move(session, going_on, State.STARTING, State.FAILED, reason=Reason.LAUNCH_ERROR, actor="w")
        queue.request_cancel(session, never_started)
    assert load(engine, going_on).took_seconds == 90
    assert load(engine, never_started).finished_at is not None
    assert load(engine, never_started).took_seconds is None


def test_stale_move_changes_nothing(engine: Engine) -> None:
    run_id = insert(engine)
    with pytest.raises(queue.StaleState, match=f"run {run_id} is no longer running"), write_session(engine) as session:
        queue.move(session, run_id, State.RUNNING, State.STOPPING, actor="w", diagnosis="x")
    assert load(engine, run_id).state == "queued"
    assert len(history(engine, run_id)) == 1


def test_final_state_is_never_overwritten(engine: Engine) -> None:
    run_id = insert(engine)
    with write_session(engine) as session:
        queue.request_cancel(session, run_id)
    with pytest.raises(ForbiddenMove), write_session(engine) as session:
        queue.move(session, run_id, State.CANCELLED, State.RUNNING, actor="w")
    with pytest.raises(queue.StaleState), write_session(engine) as session:
        queue.move(session, run_id, State.QUEUED, State.FAILED, reason=Reason.NO_DEVICES, actor="w")
    assert load(engine, run_id).state == "cancelled"


def test_failed_transaction_leaves_no_history(engine: Engine) -> None:
    run_id = insert(engine)

    def start_and_fail() -> None:
        with write_session(engine) as session:
            queue.move(session, run_id, State.QUEUED, State.STARTING, actor="w")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        start_and_fail()
    assert load(engine, run_id).state == "queued"
    assert len(history(engine, run_id)) == 1


def test_second_cancel_changes_nothing(engine: Engine) -> None:
    run_id = insert(engine)
    with write_session(engine) as session:
        queue.move(session, run_id, State.QUEUED, State.STARTING, actor="w")
        first = queue.request_cancel(session, run_id).cancel_requested_at
    with write_session(engine) as session:
        again = queue.request_cancel(session, run_id)
        assert again.cancel_requested_at == first
        assert again.state == "stopping"
    assert len(history(engine, run_id)) == 3


def test_cancel_is_noted_on_stopping_run(engine: Engine) -> None:
    run_id = insert(engine)
    with write_session(engine) as session:
        queue.move(session, run_id, State.QUEUED, State.STARTING, actor="w")
        queue.move(session, run_id, State.STARTING, State.STOPPING, actor="w", stop_reason=Reason.HANG)
        run = queue.request_cancel(session, run_id)
        assert run.cancel_requested_at is not None
        assert run.stop_reason == "hang"
    assert len(history(engine, run_id)) == 3


def test_cancel_of_ended_run_is_refused(engine: Engine) -> None:
    run_id = insert(engine)
    with write_session(engine) as session:
        queue.request_cancel(session, run_id)
    with pytest.raises(queue.AlreadyFinal), write_session(engine) as session:
        queue.request_cancel(session, run_id)
    with pytest.raises(queue.UnknownRun), write_session(engine) as session:
        queue.request_cancel(session, 999)


def test_only_fresh_workers_are_live(engine: Engine) -> None:
    def row(name: str, age: float) -> WorkerRow:
        beat = now() - timedelta(seconds=age)
        return WorkerRow(
            id=name, pid=1, pid_start=1, boot_id="b", host="h", started_at=beat, heartbeat_at=beat, devices=None
        )

    with write_session(engine) as session:
        session.add_all([row("fresh", 1), row("gone", 16)])
    with read_session(engine) as session:
        assert [worker.id for worker in live_workers(session)] == ["fresh"]
