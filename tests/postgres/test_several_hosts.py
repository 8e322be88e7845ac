"""Workers on several hosts: leases by the server's clock, and patience for processes that only their host can see."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, update
from sqlmodel import col

import app.db
from app.clock import now
from app.db import database_time, read_session, server_is_settled, write_session
from app.host.processes import boot_id, own_process
from app.runs.models import Run, StageAttempt, WorkerRow
from app.runs.workers import live_workers
from app.schema import migrate
from app.settings import Settings
from tests.support.active import ME, running
from worker import claim, recover
from worker.claim import Me

HERE = Me(id="here", process=own_process(), host="here")
LOCAL = {"pid": 7, "start": 1, "boot": "another boot"}
JOB = {"job_id": "1234"}
"""The reference of an executor whose jobs every host can ask about."""


def abandoned(engine: Engine, seconds: float, reference: dict[str, Any] | None, *, row: bool = True) -> int:
    """Return a run whose worker on another host was last heard of `seconds` ago; without a row it signed off."""
    run_id = running(engine)
    with write_session(engine) as session:
        at = database_time(session) - timedelta(seconds=seconds)
        session.execute(update(Run).where(col(Run.id) == run_id).values(lease_until=at))
        if row:
            worker = WorkerRow(id=ME.id, pid=1, pid_start=1, boot_id="b", host="far", started_at=at, heartbeat_at=at)
            session.add(worker)
        attempt = StageAttempt(
            run_id=run_id, stage="train", attempt=1, position=0, state="running", reference=reference
        )
        session.add(attempt)
    return run_id


def taken(engine: Engine, **how: Any) -> list[int]:
    return [orphan.run_id for orphan in recover.orphans(engine, HERE, **how)]


@pytest.fixture(autouse=True)
def settled_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of these tests has just started; that has its own test."""
    monkeypatch.setattr(recover, "server_is_settled", lambda _session, _seconds: True)


@pytest.mark.parametrize(
    ("seconds", "reference", "row", "found"),
    [
        (10, JOB, True, False),
        (20, JOB, True, True),
        (20, LOCAL, True, False),
        (290, LOCAL, True, False),
        (330, LOCAL, True, True),
        (20, {**LOCAL, "boot": boot_id()}, True, True),
        (1, JOB, False, True),
        (1, LOCAL, False, False),
        (310, LOCAL, False, True),
        (1, None, False, True),
    ],
)
def test_runs_wait_for_their_host(
    engine: Engine, seconds: float, reference: dict[str, Any] | None, row: bool, found: bool
) -> None:
    run_id = abandoned(engine, seconds, reference, row=row)
    assert taken(engine) == ([run_id] if found else [])


def test_nobody_is_silent_after_an_outage(engine: Engine) -> None:
    run_id = abandoned(engine, 20, JOB)
    assert taken(engine, settled=False) == []
    assert taken(engine, settled=True) == [run_id]


def test_server_that_has_just_started_is_not_settled(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with read_session(engine) as session:
        assert server_is_settled(session, 0)
        assert not server_is_settled(session, 1e9)
    monkeypatch.setattr(recover, "WORKER_FRESH_SECONDS", 1e-9)
    run_id = abandoned(engine, 20, JOB)
    assert taken(engine) == [run_id]
    monkeypatch.setattr(recover, "server_is_settled", lambda session, _: server_is_settled(session, 1e9))
    assert taken(engine) == []


def test_wrong_clock_of_a_host_takes_nothing(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host whose clock is an hour ahead, workers still live and leases still hold; by its own clock none would."""
    run_id = running(engine)
    claim.heartbeat(engine, ME, [run_id], devices={}, kinds=["k"], targets=[])
    file = Settings(data_dir=settings.data_dir / "file", database_url=f"sqlite:///{settings.data_dir / 'file.db'}")
    migrate(file)
    own = app.db.create_database_engine(file)
    claim.heartbeat(own, ME, [], devices={}, kinds=["k"], targets=[])
    ahead = now() + timedelta(hours=1)
    monkeypatch.setattr(app.db, "now", lambda: ahead)
    assert taken(engine) == []
    with read_session(engine) as session, read_session(own) as other:
        assert [worker.id for worker in live_workers(session)] == [ME.id]
        assert live_workers(other) == []  # SQLite has no clock but the host's
        assert abs((database_time(session) - now()).total_seconds()) < 60
    own.dispose()
