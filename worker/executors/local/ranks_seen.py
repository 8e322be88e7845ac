"""The rank processes of one attempt on this machine: identity, state, resource usage, stacks."""

import shutil
import signal
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from app.host import processes
from app.host.processes import STOPPED_STATES, Identity, use_of
from trainer.contract.crumb import read_crumb
from worker.executors.base import RankProcess, RankUse
from worker.executors.local.gpus import GpuUse, GpuWatch
from worker.marker import MARKER
from worker.plan import AttemptPlan

PY_SPY_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A pid from a rank's breadcrumb, and the process it referred to when this worker first checked."""

    pid: int
    process: Identity | None
    """None: it was already gone, or the pid belongs to another process."""


class RanksSeen:
    """Observes ranks from outside, by the pid in their breadcrumbs."""

    def __init__(self, plan: AttemptPlan, gpus: GpuWatch) -> None:
        self._plan, self._gpus = plan, gpus
        self._known: dict[int, Known] = {}

    def processes(self) -> dict[int, RankProcess]:
        """Return every rank that has reported its identity."""
        return {rank: _seen(known.process) for rank, known in self._look().items()}

    def living(self) -> list[Identity]:
        """Return the rank processes that are still running."""
        found = (known.process for known in self._look().values())
        return [process for process in found if process is not None and process.alive]

    def usage(self, devices: Mapping[int, str]) -> dict[int, RankUse]:
        """Return the resource usage of the live ranks; `devices` maps rank to a device such as `cuda:1`."""
        on_gpus = any(device.startswith("cuda") for device in devices.values())
        gpus = by_rank(devices, self._gpus.now()) if on_gpus else {}
        found = {}
        for rank, known in self._look().items():
            use = None if known.process is None else use_of(known.process)
            if use is not None:
                gpu = gpus.get(rank)
                found[rank] = RankUse(
                    cpu_seconds=use[0],
                    rss_bytes=use[1],
                    gpu_bytes=None if gpu is None else gpu.bytes,
                    gpu_percent=None if gpu is None else gpu.percent,
                )
        return found

    def ask_for_stacks(self) -> None:
        """Send SIGUSR1 to the ranks that have a handler for it, and to no process that it would end."""
        for rank, known in self._look().items():
            # Before the handler is installed, the signal would end the rank; the file shows that it is installed.
            if known.process is not None and self._plan.paths.stacks(rank).exists():
                known.process.send(signal.SIGUSR1)

    def take_stacks(self, ranks: Collection[int]) -> None:
        """Write the stacks of ranks that cannot respond with py-spy."""
        program, known = shutil.which("py-spy"), self._look()
        for rank in ranks if program is not None else ():
            process = known[rank].process if rank in known else None
            if program is not None and process is not None and process.alive:
                _py_spy([program, "dump", "--nonblocking", "--pid", str(process.pid)], self._plan, rank)

    def _look(self) -> dict[int, Known]:
        for rank in range(self._plan.ranks) if self._plan.ranks else self._plan.paths.breadcrumbs():
            crumb = read_crumb(self._plan.paths.breadcrumb(rank))
            if crumb is not None and (rank not in self._known or self._known[rank].pid != crumb.pid):
                self._known[rank] = Known(pid=crumb.pid, process=self._identify(crumb.pid))
        return self._known

    def _identify(self, pid: int) -> Identity | None:
        # A pid from a file is not reliable: it may be from another machine, or reused.
        identity = Identity.of(pid)
        ours = processes.environment_of(pid).get(MARKER) == self._plan.marker
        return identity if ours and identity is not None and identity.alive else None


def _seen(process: Identity | None) -> RankProcess:
    found = None if process is None else process.stat()
    if found is None or not found.alive:
        return RankProcess(alive=False)
    return RankProcess(alive=True, stopped=found.state in STOPPED_STATES)


def _py_spy(argv: list[str], plan: AttemptPlan, rank: int) -> None:
    with plan.paths.stacks(rank).open("ab") as handle:
        try:
            subprocess.run(argv, stdout=handle, stderr=subprocess.DEVNULL, timeout=PY_SPY_SECONDS, check=False)
        except (OSError, subprocess.SubprocessError):
            return  # a stack is helpful, but optional


def by_rank(devices: Mapping[int, str], use: Mapping[int, GpuUse]) -> dict[int, GpuUse]:
    """Return the usage of each rank's GPU; the device `cuda:1` is the GPU with index 1."""
    found = {}
    for rank, device in devices.items():
        kind, _, number = device.partition(":")
        if kind == "cuda" and number.isdigit() and int(number) in use:
            found[rank] = use[int(number)]
    return found
