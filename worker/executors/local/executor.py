"""Runs attempts on this machine, each under a shim in a session of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Final

from app.settings import harmless
from trainer.contract.files import write_json_atomically
from trainer.contract.paths import AttemptPaths
from worker.executors.local import processes
from worker.executors.local.processes import Identity
from worker.plan import CHECKOUT, AttemptPlan

DESTROY_SECONDS: Final = 5.0
"""How long processes that got SIGKILL may take to vanish."""


class LocalHandle:
    """A shim on this machine."""

    def __init__(self, identity: Identity, marker: str, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self.identity, self.marker = identity, marker
        self._process = process
        self._descriptor = identity.open()

    @property
    def alive(self) -> bool:
        """Whether the shim still runs; reaps it if it is this worker's child."""
        if self._process is not None:
            return self._process.poll() is None
        return self.identity.alive

    @property
    def returncode(self) -> int | None:
        """Exit code of the shim, negative for a signal, None if unknown."""
        return None if self._process is None else self._process.poll()

    def descriptor(self) -> int | None:
        """Return a pidfd."""
        return self._descriptor

    def terminate(self) -> None:
        """Send TERM to the shim, which starts its one deadline on the first."""
        self.identity.send(signal.SIGTERM)

    def destroy(self) -> int:
        """Kill the shim first, so that it cannot report on what it no longer sees, then everything it started."""
        self.identity.send(signal.SIGKILL)
        count = end_marked(self.marker)
        if self._process is not None:
            self._process.wait(DESTROY_SECONDS)
        return count

    def close(self) -> None:
        """Close the pidfd."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class LocalExecutor:
    """Starts shims on this machine."""

    def start(self, plan: AttemptPlan) -> LocalHandle:
        """Write plan.json and start the shim. Raises OSError."""
        plan.paths.root.mkdir(parents=True, exist_ok=True)
        write_json_atomically(plan.paths.plan, plan.document())
        inherited = harmless(os.environ)
        search = [plan.environment.get("PYTHONPATH", str(CHECKOUT)), *filter(None, [inherited.get("PYTHONPATH")])]
        environment = {**inherited, **plan.environment, "PYTHONPATH": os.pathsep.join(search)}
        with plan.paths.shim_log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "worker.executors.local.shim", str(plan.paths.plan)],
                cwd=plan.cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        identity = Identity.of(process.pid)
        if identity is None:  # cannot be: a child stays until it is reaped
            raise ChildProcessError(f"process {process.pid} vanished before it was reaped")
        return LocalHandle(identity, plan.marker, process)

    def adopt(self, paths: AttemptPaths, marker: str) -> LocalHandle | None:
        """Return the handle of the shim that wrote shim.json, None when it is gone or was another boot's."""
        try:
            document = json.loads(paths.shim.read_text())
            identity = Identity.load(document)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return LocalHandle(identity, marker) if identity.alive and document.get("marker") == marker else None

    def end_orphans(self, marker: str) -> int:
        """Kill every process that carries the marker."""
        return end_marked(marker)


def end_marked(marker: str) -> int:
    """Kill every process that carries `marker`, those born meanwhile too, and return how many were found."""
    seen: set[Identity] = set()
    deadline = time.monotonic() + DESTROY_SECONDS
    while (found := processes.marked(marker)) and time.monotonic() < deadline:
        seen.update(found)
        processes.kill_all(found)
        time.sleep(0.02)
    return len(seen)
