"""A worker stopped inside a write transaction: processes that need the lock continue it, but only workers."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlmodel import select

from app import db
from app.clock import now
from app.database import sqlite
from app.db import create_database_engine, write_session
from app.host.processes import Identity
from app.runs.models import Meta, WorkerRow
from app.schema import migrate
from app.settings import Settings

pytestmark = pytest.mark.sqlite

HOLDER = """
import os, signal, sqlite3, sys
sys.stdin.readline()  # listed by now
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
connection.execute("BEGIN IMMEDIATE")
connection.execute("INSERT INTO meta (key, value) VALUES ('held', 'yes')")
print("holding", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
connection.execute("COMMIT")
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(sqlite, "PATIENCE_MS", 200)
    monkeypatch.setattr(db, "BUSY_TIMEOUT_MS", 3000)
    settings = Settings(data_dir=tmp_path)
    migrate(settings)
    engine = create_database_engine(settings)
    yield engine
    engine.dispose()


def list_worker(engine: Engine, pid: int, *, host: str = "", later: float = 0.0) -> None:
    identity = Identity.of(pid)
    assert identity is not None
    row = WorkerRow(
        id="w",
        pid=pid,
        pid_start=identity.start + later,
        boot_id=identity.boot,
        host=host or socket.gethostname(),
        started_at=now(),
        heartbeat_at=now(),
    )
    with write_session(engine) as session:
        session.add(row)


def stopped(process: "subprocess.Popen[str]") -> None:
    """Wait until the holder has the lock and is stopped."""
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def started_and_listed(
    engine: Engine, tmp_path: Path, *, host: str = "", later: float = 0.0
) -> "subprocess.Popen[str]":
    path = str(tmp_path / "ddp-audit.db")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    list_worker(engine, process.pid, host=host, later=later)
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    stopped(process)
    return process


def ended(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.communicate()


def write(engine: Engine, value: str) -> None:
    with write_session(engine) as session:
        session.add(Meta(key="mine", value=value))


def test_stopped_worker_is_continued_by_who_needs_the_lock(engine: Engine, tmp_path: Path) -> None:
    process = started_and_listed(engine, tmp_path)
    try:
        write(engine, "after")
        assert process.wait(30) == 0
        with write_session(engine) as session:
            assert sorted(row.key for row in session.exec(select(Meta)) if row.key in {"held", "mine"}) == [
                "held",
                "mine",
            ]
    finally:
        ended(process)


@pytest.mark.parametrize(("host", "later"), [("another-host", 0.0), ("", 7.0)])
def test_process_that_is_no_worker_of_this_host_is_left_alone(
    engine: Engine, tmp_path: Path, host: str, later: float
) -> None:
    process = started_and_listed(engine, tmp_path, host=host, later=later)
    try:
        with pytest.raises(OperationalError, match="locked"):
            write(engine, "never")
        assert process.poll() is None
    finally:
        ended(process)


def test_lock_that_is_let_go_in_time_needs_no_look(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "PATIENCE_MS", 20_000)
    engine.dispose()
    looked: list[int] = []
    monkeypatch.setattr("app.runs.workers.continue_stopped_workers", lambda _connection: looked.append(1))
    process = started_and_listed(engine, tmp_path)
    try:
        process.send_signal(signal.SIGCONT)
        write(engine, "soon")
        assert looked == []
    finally:
        ended(process)
