"""Runs attempts as Slurm jobs; one thread asks Slurm about all of them at once, so that the worker never waits."""

import os
import threading
import time
from typing import Final

from app.runs.requests import ON_A_CLUSTER
from app.settings import Settings
from trainer.contract.files import write_json_atomically
from worker.executors.base import Devices, Handle, Reference
from worker.executors.local.gpus import GpuWatch
from worker.executors.local.handle import LocalHandle
from worker.executors.slurm.cluster import NAME, Cluster
from worker.executors.slurm.commands import Programs, Unavailable
from worker.executors.slurm.handle import SlurmHandle
from worker.executors.slurm.script import Defaults
from worker.log import log
from worker.plan import AttemptPlan

LOOK_SECONDS: Final = 0.3
"""Between two looks at the files of the nodes."""
CLUSTER_SECONDS: Final = 60.0
"""Between two questions about partitions while Slurm answers."""
CLOSE_SECONDS: Final = 35.0


class SlurmExecutor:
    """Submits and follows jobs."""

    name = NAME

    def __init__(self, settings: Settings, *, programs: Programs | None = None) -> None:
        self._settings = settings
        self._programs = programs or Programs(os.environ)
        self._cluster = Cluster(self._programs)
        self.devices: Devices = self._cluster
        self._handles: list[SlurmHandle] = []
        self._lock = threading.Lock()
        self._wake, self._ended = threading.Event(), threading.Event()
        self._asked_at = self._looked_at = 0.0
        self._thread = threading.Thread(target=self._work, name="slurm", daemon=True)
        self._thread.start()

    def start(self, plan: AttemptPlan) -> Handle:
        """Return the handle of a job that is submitted in the background. Raises OSError for what a job cannot run."""
        if plan.arrived:
            return _arrived(plan)
        if plan.launcher == "command":
            raise OSError(f"the Slurm executor starts no programs to trace: {ON_A_CLUSTER}")
        defaults = Defaults.of(self._settings)
        return self._follow(SlurmHandle(plan, self._programs, hurry=self._hurry, defaults=defaults))

    def attach(self, plan: AttemptPlan, reference: Reference | None) -> Handle:
        """Return the handle of a job that an earlier worker may have submitted: by its number, else by its name."""
        if plan.arrived:
            return _arrived(plan)
        job_id = None if reference is None else int(reference["job"])
        return self._follow(SlurmHandle(plan, self._programs, hurry=self._hurry, job_id=job_id))

    def close(self) -> None:
        """End the thread after what is still to be cancelled; jobs continue."""
        self._ended.set()
        self._wake.set()
        self._thread.join(CLOSE_SECONDS)

    def _follow(self, handle: SlurmHandle) -> SlurmHandle:
        with self._lock:
            self._handles.append(handle)
        self._hurry()
        return handle

    def _hurry(self) -> None:
        """Ask Slurm soon."""
        self._asked_at = 0.0
        self._wake.set()

    def _work(self) -> None:
        while True:
            ending = self._ended.is_set()
            try:
                self._round(last=ending)
            except Exception:
                log.exception("following jobs failed", action="slurm-error")
            if ending:
                return
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()

    def _round(self, *, last: bool) -> None:
        with self._lock:
            self._handles = [handle for handle in self._handles if not handle.settled]
            handles = list(self._handles)
        moment = time.monotonic()
        for handle in handles:
            handle.look()
        again = self._settings.slurm_poll_seconds if self._cluster.offer().problem else CLUSTER_SECONDS
        if not last and moment - self._looked_at >= again:
            self._looked_at = moment
            self._cluster.look()
        if handles and (last or moment - self._asked_at >= self._settings.slurm_poll_seconds):
            self._asked_at = moment
            self._ask(handles)

    def _ask(self, handles: list[SlurmHandle]) -> None:
        try:
            jobs = self._programs.jobs()
        except Unavailable as error:
            self._cluster.note(f"Slurm does not answer: {error}")
            for handle in handles:
                handle.unreachable(str(error))
            return
        for handle in handles:
            try:
                handle.follow(jobs)
            except Unavailable as error:
                handle.unreachable(str(error))
            except OSError as error:
                log.warning("the files of a job are not available", action="slurm-files", error=str(error))
                handle.unreachable(f"the folder of the run cannot be used: {error}")


def _arrived(plan: AttemptPlan) -> LocalHandle:
    """Return the handle of an attempt that ended elsewhere; what is known of its end came with it."""
    if not plan.paths.exit.exists():
        end = {"schema_version": 1, "marker": plan.marker, "main": {}}
        write_json_atomically(plan.paths.exit, end, within=plan.paths.run)
    return LocalHandle(plan, GpuWatch())
