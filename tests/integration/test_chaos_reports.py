"""`benchmarks/chaos.py` reports every fault with its text, and reliably stops a writer inside its transaction."""

import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.host.processes import Identity
from benchmarks import chaos
from benchmarks.chaos_lab import is_stopped, stop_while_writing

pytestmark = pytest.mark.sqlite

WRITER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
connection.execute("CREATE TABLE IF NOT EXISTS t (x)")
print("ready", flush=True)
while True:
    if sys.argv[2] == "writes":
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("COMMIT")
    time.sleep(0.002)
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "some.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    return tmp_path / "some.db"


@pytest.fixture
def process(database: Path, request: pytest.FixtureRequest) -> Iterator[Identity]:
    argv = [sys.executable, "-c", WRITER, str(database), request.param]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        found = Identity.of(started.pid)
        assert found is not None
        yield found
        started.kill()


def write(database: Path) -> None:
    with closing(sqlite3.connect(database, timeout=0.2, isolation_level=None)) as connection:
        connection.execute("INSERT INTO t VALUES (2)")


@pytest.mark.parametrize("process", ["writes"], indirect=True)
def test_writer_is_stopped_inside_its_transaction(process: Identity, database: Path) -> None:
    assert stop_while_writing(process, database, seconds=60.0, rng=random.Random(1))
    assert is_stopped(process)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        write(database)
    process.send(signal.SIGCONT)
    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as connection:
        connection.execute("INSERT INTO t VALUES (3)")


@pytest.mark.parametrize("process", ["idles"], indirect=True)
def test_process_that_never_writes_is_left_running(process: Identity, database: Path) -> None:
    assert not stop_while_writing(process, database, seconds=0.5, rng=random.Random(1))
    assert not is_stopped(process)
    write(database)


class Broken:
    """A lab in which one action fails."""

    def __init__(self, broken: str, error: Exception) -> None:
        self._broken, self._error = broken, error
        self.workers = [SimpleNamespace(poll=lambda: None)]
        self.processes: Any = lambda _run_id: []
        ended = SimpleNamespace(
            state="succeeded", reason="completed", diagnosis="", failure=None, gpus=[], lease_until=None
        )
        for name, answer in {
            "submit": 1, "until": True, "run": ended, "finished": ended, "assert_events_complete": None,
        }.items():  # fmt: skip
            setattr(self, name, self._stub(name, answer))

    def _stub(self, name: str, answer: Any) -> Any:
        def stub(*_: Any, **__: Any) -> Any:
            if name == self._broken:
                raise self._error
            return answer

        return stub


def played(broken: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> chaos.Round:
    monkeypatch.setattr(chaos, "find", lambda *_: None)
    service: Any = SimpleNamespace(process=SimpleNamespace(poll=lambda: None))
    lab: Any = Broken(broken, error)
    return chaos.play(lab, service, chaos.Round(number=3, victim="shim", deed="kill", moment=0.0), 5)


@pytest.mark.parametrize("broken", ["submit", "until", "run", "finished", "assert_events_complete"])
def test_error_in_a_round_is_a_fault_with_its_text(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    this = played(broken, AssertionError("an event did not come\nand the log says why"), monkeypatch)
    assert this.faults
    assert "AssertionError: an event did not come" in this.text()
    assert "       and the log says why" in this.text().splitlines()


def test_error_without_a_text_is_told_by_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    this = played("assert_events_complete", AssertionError(), monkeypatch)
    assert this.faults == ["events: AssertionError: in stub: raise self._error"]


def test_round_without_an_error_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    this = played("nothing", AssertionError(), monkeypatch)
    assert this.faults == []
    assert this.text().endswith("holds")


def test_every_tenth_round_stops_a_writer() -> None:
    rounds = [chaos.draw(5, number) for number in range(1, 101)]
    assert [this.number for this in rounds if this.deed == chaos.HOLD] == list(range(10, 101, 10))
    assert {this.victim for this in rounds if this.deed == chaos.HOLD} == {"worker"}
    assert {this.victim for this in rounds} == set(chaos.VICTIMS)
    rounds[0].hit, rounds[9].hit = True, True
    rounds[1].faults.append("x")
    assert chaos.summary(rounds).startswith("99 of 100 rounds hold; ")
    assert "stop writing 1" in chaos.summary(rounds)
