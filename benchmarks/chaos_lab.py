"""Helpers of `chaos`: a web process, processes by role, and stopping a process that holds the write lock."""

import json
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from app.host import processes
from app.host.processes import STOPPED_STATES, Identity
from tests.support.worker_lab import ROOT, Lab

ANSWER_SECONDS: Final = 60.0
"""Maximum duration of a write; the service itself gives up earlier."""
FREE_SECONDS: Final = 0.3
"""The lock of a running transaction is released long before."""
GAP_SECONDS: Final = 0.003
"""Maximum time between two checks."""


class Service:
    """A web process that is restarted when it is gone."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.process = self.start()

    def edit(self, run_id: int) -> int:
        """Change a run's notes through the API and return the HTTP status. Raises OSError without a response."""
        url = f"http://127.0.0.1:{self._port}/api/v1/runs/{run_id}"
        body, headers = json.dumps({"notes": "written meanwhile"}).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(url, body, headers, method="PATCH")
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return int(answer.status)

    def listens(self) -> bool:
        """Return whether the web process accepts connections."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def start(self) -> "subprocess.Popen[bytes]":
        """Start the web process."""
        arguments = ["serve", "--no-worker", "--port", str(self._port)]
        with (self._lab.settings.data_dir / "web.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from app.cli.main import main; main()", *arguments],
                cwd=ROOT,
                env=self._lab.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.process


def process_of(lab: Lab, run_id: int, role: str) -> Identity | None:
    """Return the process of a run with this role (`shim`, `agent`, `rank 0` …), None if there is none."""
    match: Callable[[Identity], bool]
    if role.startswith("rank"):
        match = lambda item: processes.environment_of(item.pid).get("RANK") == role[-1]  # noqa: E731
    else:
        module = b"worker.executors.local.shim" if role == "shim" else b"trainer.launch"
        match = lambda item: module in _command(item.pid)  # noqa: E731
    return next((item for item in lab.processes(run_id) if match(item)), None)


def _command(pid: int) -> bytes:
    try:
        return (processes.PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def is_stopped(process: Identity) -> bool:
    """Return whether a process exists and is stopped."""
    found = process.stat()
    return found is not None and found.state in STOPPED_STATES


def stop_while_writing(process: Identity, database: Path, *, seconds: float, rng: random.Random) -> bool:
    """Stop a process inside a write transaction and return whether that worked; if not, it is still running.

    Looks at the write lock until somebody has it, stops the process, and sees whether the lock comes free without it.
    """
    deadline = time.monotonic() + seconds
    with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
        while time.monotonic() < deadline and process.alive:
            time.sleep(rng.uniform(0.0, GAP_SECONDS))
            if _is_free(connection, 0.0):
                continue
            if not process.send(signal.SIGSTOP):
                return False
            if not _is_free(connection, FREE_SECONDS):
                return True
            process.send(signal.SIGCONT)
    return False


def _is_free(connection: sqlite3.Connection, seconds: float) -> bool:
    connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return False
        raise
    connection.execute("ROLLBACK")
    return True
