"""One attempt on this machine: its supervisor is started or found again, watched, ended."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from app.host import processes
from app.host.processes import STOPPED_STATES, Identity, boot_id
from worker.executors.base import Fate, Phase, RankProcess, RankUse, Reference, Status
from worker.executors.local.gpus import GpuWatch
from worker.executors.local.ranks_seen import RanksSeen
from worker.executors.local.shim import EXIT_CANNOT_WRITE, EXIT_GONE
from worker.executors.local.warm import Child
from worker.facts import read_json
from worker.log import log
from worker.marker import MARKER
from worker.plan import AttemptPlan

SHIM_START_SECONDS: Final = 2.0
"""If an earlier worker was about to start a supervisor, it writes shim.json within this time, or never started."""
DESTROY_SECONDS: Final = 5.0
"""How long processes that got SIGKILL may take to vanish."""
FATES: Final[dict[int | None, Fate]] = {EXIT_CANNOT_WRITE: Fate.NO_SPACE, EXIT_GONE: Fate.GONE}
"""Fates of a supervisor without a report, by exit code."""
Begin = Callable[[AttemptPlan], Child | None]
"""Starts the supervisor; None while waiting a moment makes the start faster."""


class LocalHandle:
    """A supervisor on this machine. Every method may be called at any time and in any order."""

    def __init__(
        self,
        plan: AttemptPlan,
        gpus: GpuWatch,
        *,
        begin: Begin | None = None,
        awaited: Callable[[], int | None] = lambda: None,
    ) -> None:
        """With `begin` the attempt is started, otherwise it is searched for.

        `awaited` returns a file descriptor that becomes readable when a start that waits can continue.
        """
        self.plan, self._begin, self._awaited = plan, begin, awaited
        self.identity: Identity | None = None
        self._child: Child | None = None
        self._descriptor: int | None = None
        self._looking_since = time.monotonic()
        self._since: float | None = None
        self._final: Status | None = None
        self._ended_by_force = 0
        self._seen = RanksSeen(plan, gpus)

    def status(self) -> Status:
        """Return the current status."""
        if self._final is not None:
            return self._final
        if self._begin is not None:
            return self._start(self._begin)
        if self.identity is None:
            return self._look()
        if self._alive(self.identity):
            self._continue_if_stopped(self.identity)
            return Status(phase=Phase.RUNNING, since=self._since)
        return self._supervisor_ended(self.identity)

    def reference(self) -> Reference | None:
        """Return the supervisor's identity; shim.json in the attempt's folder contains the same."""
        return None if self.identity is None else self.identity.document()

    def descriptor(self) -> int | None:
        """Return a pidfd of the supervisor, or what its start waits for."""
        return self._descriptor if self._begin is None else self._awaited()

    def ranks(self) -> Mapping[int, RankProcess]:
        """Return the ranks that have written a breadcrumb."""
        return self._seen.processes()

    def usage(self, devices: Mapping[int, str]) -> Mapping[int, RankUse]:
        """Return the resource usage of the live ranks, from /proc and nvidia-smi."""
        return self._seen.usage(devices)

    def ask_for_stacks(self) -> None:
        """Send SIGUSR1 to every rank that has installed its handler."""
        self._seen.ask_for_stacks()

    def take_stacks(self, ranks: Collection[int]) -> None:
        """Write the stacks with py-spy, if it is installed."""
        self._seen.take_stacks(ranks)

    def stop(self) -> None:
        """Send SIGTERM to the supervisor; the first one starts its deadline."""
        if self._begin is not None:
            self._begin, self._final = (
                None,
                Status(phase=Phase.ENDED, fate=Fate.NOT_STARTED, why="it was stopped first"),
            )
        elif self.identity is not None:
            self.identity.send(signal.SIGTERM)

    def kill_ranks(self) -> int:
        """Send SIGKILL to every rank."""
        return processes.kill_all(self._seen.living())

    def destroy(self) -> None:
        """Kill the supervisor first, so that it cannot report a wrong end, then everything it started."""
        if self.identity is not None:
            self.identity.send(signal.SIGKILL)
        self._ended_by_force += end_marked(self.plan.marker)
        deadline = time.monotonic() + DESTROY_SECONDS
        while self._child is not None and self._child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)

    def close(self) -> None:
        """Close the pidfd."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _start(self, begin: Begin) -> Status:
        try:
            child = begin(self.plan)
        except OSError as error:
            self._begin = None
            self._final = Status(phase=Phase.ENDED, fate=Fate.NOT_STARTED, why=str(error))
            return self._final
        if child is None:
            return Status(phase=Phase.WAITING, why="torch is being imported")
        self._begin, self._child, self._since = None, child, time.time()
        self._watch(Identity.of(child.pid))
        return Status(phase=Phase.RUNNING, since=self._since) if self.identity is not None else self._look()

    def _watch(self, identity: Identity | None) -> None:
        self.close()
        self.identity = identity
        self._descriptor = None if identity is None else identity.open()

    def _look(self) -> Status:
        written = read_json(self.plan.paths.shim)
        identity = _identity_in(written)
        if identity is not None and identity.alive and written.get("marker") == self.plan.marker:
            self._watch(identity)
            self._log("found the supervisor of an attempt", action="attempt-found")
            return Status(phase=Phase.RUNNING)
        if self.plan.paths.exit.exists():
            self._final = Status(phase=Phase.ENDED)
        elif not self.plan.paths.shim.exists():
            if time.monotonic() - self._looking_since <= SHIM_START_SECONDS:
                return Status(phase=Phase.LOOKING)
            self._final = Status(phase=Phase.ABSENT)
        elif written.get("boot") != boot_id():
            self._final = Status(phase=Phase.ENDED, fate=Fate.REBOOTED)
        else:
            self._final = self._lost(Fate.LOST)
        return self._final

    def _alive(self, identity: Identity) -> bool:
        if self._child is not None:
            self._child.poll()  # reaps it if it is a child of this worker
        return identity.alive

    def _continue_if_stopped(self, identity: Identity) -> None:
        # A stopped supervisor would leave its run without an end; continuing it is harmless.
        found = identity.stat()
        if found is not None and found.state in STOPPED_STATES:
            self._log("the supervisor was stopped and is continued", action="supervisor-continued")
            identity.send(signal.SIGCONT)

    def _supervisor_ended(self, identity: Identity) -> Status:
        code = None if self._child is None else self._child.poll()
        self.close()
        if self.plan.paths.exit.exists():
            self._final = Status(phase=Phase.ENDED, processes_ended=self._ended_by_force)
            return self._final
        written = _identity_in(read_json(self.plan.paths.shim))
        if written is not None and written != identity:  # another supervisor owns the attempt
            self.identity, self._child = None, None
            return Status(phase=Phase.LOOKING)
        self._final = self._lost(FATES.get(code, Fate.LOST))
        return self._final

    def _lost(self, fate: Fate) -> Status:
        self._ended_by_force += end_marked(self.plan.marker)
        return Status(phase=Phase.ENDED, fate=fate, processes_ended=self._ended_by_force)

    def _log(self, text: str, **fields: Any) -> None:
        log.info(text, run_id=self.plan.run_id, stage=self.plan.stage, attempt=self.plan.attempt, **fields)


def _identity_in(document: Mapping[str, Any]) -> Identity | None:
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return Identity.load(dict(document))
    return None


def end_marked(marker: str) -> int:
    """Kill every process with `marker`, including those started meanwhile, and return how many were found."""
    seen: set[Identity] = set()
    deadline = time.monotonic() + DESTROY_SECONDS
    while (found := processes.carrying(MARKER, marker)) and time.monotonic() < deadline:
        seen.update(found)
        processes.kill_all(found)
        time.sleep(0.02)
    return len(seen)
