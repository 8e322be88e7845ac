"""Real workers on a real database: `lab = Lab(tmp_path)`, `lab.worker()`, `run = lab.submit(acts={"1": "exit:3"})`.

Runs are of the kind `misbehave` by default. It is in `kinds_path` next to a `.dist-info` that names its entry point,
and every process finds it because the folder is on the PYTHONPATH of the workers started here.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sqlmodel import col, select

from app.db import create_database_engine, read_session, write_session
from app.host import processes
from app.host.processes import Identity
from app.runs import queue
from app.runs.models import MalformedLine, RankRow, Run, RunEvent, RunHistory, StageAttempt
from app.runs.states import State
from app.schema import migrate
from app.settings import Settings
from trainer.contract.kinds import kinds, resolve_params
from trainer.contract.paths import AttemptPaths, RunPaths
from worker import records
from worker.marker import MARKER

ROOT = Path(__file__).resolve().parents[2]
KINDS_PATH = ROOT / "tests" / "support" / "kinds_path"
PATIENCE = 90.0
"""Seconds a test waits for an expected event; several times what an idle machine needs."""

if str(KINDS_PATH) not in sys.path:
    sys.path.append(str(KINDS_PATH))
    kinds.cache_clear()


class Lab:
    """A data directory, its workers, and access to their results."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        quick = {"stop_grace_seconds": 3.0, "start_seconds": 60.0}
        self.settings = Settings(data_dir=data_dir, **{**quick, **settings})
        migrate(self.settings)
        self.engine = create_database_engine(self.settings)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.database_id = records.database_id(self.engine)
        self._changed = {**quick, **settings}

    def close(self) -> None:
        """End the workers and every process of every run."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
        for process in self.processes():
            process.send(signal.SIGKILL)
        self.engine.dispose()

    def environment(self) -> dict[str, str]:
        """Return the environment of a worker of this lab."""
        names = {f"DDP_AUDIT_{name.upper()}": str(value) for name, value in self._changed.items()}
        search = os.pathsep.join([str(KINDS_PATH), str(ROOT)])
        return {**os.environ, **names, "DDP_AUDIT_DATA_DIR": str(self.settings.data_dir), "PYTHONPATH": search}

    def worker(self, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
        """Start a worker process."""
        with (self.settings.data_dir / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "worker", *arguments],
                cwd=ROOT,
                env={**self.environment(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.workers.append(process)
        return process

    def submit(self, kind: str = "misbehave", preset: str | None = None, **given: Any) -> int:
        """Queue a run and return its number."""
        launch = given.pop("launch", {})
        params = resolve_params(kinds()[kind], preset, {"device": "cpu", **given}).model_dump(mode="json")
        with write_session(self.engine) as session:
            return queue.number_of(queue.insert_run(session, kind=kind, preset=preset, params=params, launch=launch))

    def cancel(self, run_id: int) -> Run:
        """Cancel a run."""
        with write_session(self.engine) as session:
            run = queue.request_cancel(session, run_id)
            session.flush()
            session.expunge(run)
            return run

    def run(self, run_id: int) -> Run:
        """Return the current row of the run."""
        return records.load_run(self.engine, run_id)

    def until(self, condition: Callable[[], Any], what: str = "condition", seconds: float = PATIENCE) -> Any:
        """Wait until `condition` returns a true value and return it; fails with the worker's log."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            time.sleep(0.05)
        log = (self.settings.data_dir / "worker.log").read_text(errors="replace")[-6000:]
        raise AssertionError(f"{what} did not come within {seconds:g} s\n{log}")

    def finished(self, run_id: int, seconds: float = PATIENCE) -> Run:
        """Wait for the final state of a run and return the run."""

        def final() -> Run | None:
            run = self.run(run_id)
            return run if State(run.state).is_final else None

        found: Run = self.until(final, f"final state of run {run_id} (now {self.run(run_id).state})", seconds)
        return found

    def reached(self, run_id: int, state: str, seconds: float = PATIENCE) -> None:
        """Wait until a run is in `state`."""
        self.until(lambda: self.run(run_id).state == state, f"state {state} of run {run_id}", seconds)

    def rank_at_step(self, run_id: int, rank: int, step: int, seconds: float = PATIENCE) -> RankRow:
        """Wait until the database knows that a rank has reached a step, and return its row."""

        def there() -> RankRow | None:
            return next((row for row in self.ranks(run_id) if row.rank == rank and (row.step or 0) >= step), None)

        found: RankRow = self.until(there, f"step {step} of rank {rank}", seconds)
        return found

    def ranks(self, run_id: int) -> list[RankRow]:
        """Return the rank rows of a run, the current attempt last."""
        return self._rows(select(RankRow).where(RankRow.run_id == run_id).order_by(RankRow.stage, col(RankRow.rank)))

    def attempts(self, run_id: int) -> list[StageAttempt]:
        """Return the stage attempts of a run in order."""
        return records.attempts(self.engine, run_id)

    def events(self, run_id: int) -> list[RunEvent]:
        """Return the stored events of a run in order."""
        return self._rows(select(RunEvent).where(RunEvent.run_id == run_id).order_by(col(RunEvent.id)))

    def malformed(self, run_id: int) -> list[MalformedLine]:
        """Return the malformed lines."""
        return self._rows(
            select(MalformedLine).where(MalformedLine.run_id == run_id).order_by(col(MalformedLine.offset))
        )

    def history(self, run_id: int) -> list[str]:
        """Return the states that a run went through."""
        query = select(RunHistory).where(RunHistory.run_id == run_id).order_by(col(RunHistory.seq))
        return [row.target for row in self._rows(query)]

    def _rows(self, query: Any) -> list[Any]:
        with read_session(self.engine) as session:
            rows = list(session.exec(query))
            session.expunge_all()
            return rows

    def paths(self, run_id: int) -> RunPaths:
        """Return the paths of a run."""
        return RunPaths(self.settings.runs_dir / str(run_id))

    def processes(self, run_id: int | None = None) -> list[Identity]:
        """Return every living process of this lab's runs, or of one of them."""
        prefix = f"{self.database_id}:" if run_id is None else f"{self.database_id}:{run_id}:"
        found = []
        for pid in processes.all_pids():
            if processes.environment_of(pid).get(MARKER, "").startswith(prefix):
                identity = Identity.of(pid)
                if identity is not None and identity.alive:
                    found.append(identity)
        return found

    def shim(self, run_id: int, stage: str = "stage-1", attempt: int = 1) -> int:
        """Return the pid of the supervisor of an attempt."""
        paths = self.paths(run_id).attempt(stage, attempt)
        self.until(paths.shim.exists, "shim.json")
        pid: int = json.loads(paths.shim.read_text())["pid"]
        return pid

    def agent(self, run_id: int) -> int:
        """Return the pid of the torchrun agent of a run."""

        def found() -> int | None:
            for process in self.processes(run_id):
                command = (processes.PROC / str(process.pid) / "cmdline").read_bytes()
                if b"trainer.launch" in command:
                    return process.pid
            return None

        pid: int = self.until(found, "the agent")
        return pid

    def assert_events_complete(self, run_id: int) -> None:
        """Check that every valid line of every rank file is stored once, unchanged, in order, and numbered 1, 2, 3 …"""
        stored = self.events(run_id)
        numbers = [event.id for event in stored]
        assert numbers == list(range(1, len(stored) + 1)), f"events are numbered {numbers}"
        total = 0
        for row in self.ranks(run_id):
            path = AttemptPaths(self.paths(run_id).stage(row.stage) / f"attempt_{row.attempt}").events(row.rank)
            lines = path.read_bytes().splitlines() if path.exists() else []
            aside = {bytes(line.text, "utf-8") for line in self.malformed(run_id)}
            expected = [line.decode() for line in lines if _is_event(line) and line not in aside]
            place = (row.stage, row.attempt, row.rank)
            kept = [event.line for event in stored if (event.stage, event.attempt, event.rank) == place]
            assert kept == expected, f"{place}: {len(kept)} stored, {len(expected)} written, or not the same"
            total += len(expected)
        assert len(stored) == total, f"{len(stored)} events stored, {total} written"


def _is_event(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


@contextlib.contextmanager
def open_lab(data_dir: Path, **settings: Any) -> Iterator[Lab]:
    """Yield a lab and end everything it started."""
    lab = Lab(data_dir, **settings)
    try:
        yield lab
    finally:
        lab.close()
