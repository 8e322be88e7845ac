"""Runs attempts on this machine, each under a supervisor in its own session."""

import os
import sys
from typing import Final

from app.settings import Settings
from trainer.contract.files import write_json_atomically
from worker.executors.base import Devices, Reference
from worker.executors.local.devices import LocalDevices
from worker.executors.local.gpus import GpuWatch
from worker.executors.local.handle import Begin, LocalHandle
from worker.executors.local.warm import Child, Starter, inherited
from worker.plan import AttemptPlan

SHIM: Final = "worker.executors.local.shim"


class LocalExecutor:
    """Starts supervisors on this machine."""

    name = "local"

    def __init__(
        self,
        settings: Settings,
        *,
        interpreter: str = sys.executable,
        devices: Devices | None = None,
        starter: Starter | None = None,
    ) -> None:
        """Detect this machine's devices unless they are given; a given `starter` is closed with the executor."""
        self._interpreter = interpreter
        self._starter = starter or Starter(inherited(os.environ), warm=settings.warm_start)
        self._local_devices = LocalDevices(settings, self._starter)
        self.devices: Devices = devices or self._local_devices
        self._gpus = GpuWatch(self._local_devices.indices)

    def start(self, plan: AttemptPlan) -> LocalHandle:
        """Write plan.json; the supervisor is started by the handle's first `status`. Raises OSError."""
        if plan.terminal:
            raise OSError("this command can only be started by `ddp-audit trace` in its own terminal")
        if plan.arrived:
            return self._arrived(plan)
        if plan.nodes > 1:
            raise OSError(
                f"launch.nodes is {plan.nodes}, and this worker has one node: set DDP_AUDIT_EXECUTOR to slurm"
            )
        return self.launch(plan, self._begin)

    def launch(self, plan: AttemptPlan, begin: Begin) -> LocalHandle:
        """Write plan.json and return the handle of the supervisor that `begin` starts. Raises OSError."""
        write_json_atomically(plan.paths.plan, self._document(plan), within=plan.paths.run)
        handle = LocalHandle(plan, self._gpus, begin=begin, awaited=self._starter.descriptor)
        handle.status()
        return handle

    def _arrived(self, plan: AttemptPlan) -> LocalHandle:
        """Return the handle of an attempt that ended elsewhere; what is known of its end came with it."""
        if not plan.paths.exit.exists():
            end = {"schema_version": 1, "marker": plan.marker, "main": {}}
            write_json_atomically(plan.paths.exit, end, within=plan.paths.run)
        return LocalHandle(plan, self._gpus)

    def attach(self, plan: AttemptPlan, reference: Reference | None) -> LocalHandle:  # noqa: ARG002  # shim.json tells
        """Return the handle of an attempt that an earlier worker may have started."""
        return LocalHandle(plan, self._gpus)

    def close(self) -> None:
        """End the probe, nvidia-smi and the template; attempts continue."""
        self._local_devices.close()
        self._gpus.close()
        self._starter.close()

    def _begin(self, plan: AttemptPlan) -> Child | None:
        if plan.imports != "nothing" and self._starter.warming(compiler=plan.imports == "compiler"):
            return None
        argv = [sys.executable, "-m", SHIM, str(plan.paths.plan)]
        return self._starter.start(argv, plan.environment, cwd=str(plan.cwd), out=str(plan.paths.shim_log))

    def _document(self, plan: AttemptPlan) -> dict[str, object]:
        search_path = [*filter(None, [plan.search_path, os.environ.get("PYTHONPATH")])] if plan.search_path else []
        return {
            "marker": plan.marker,
            "launcher": plan.launcher,
            "ranks": plan.ranks,
            "argv": list(plan.command) if plan.launcher == "command" else [self._interpreter, *plan.command],
            "environment": dict(plan.environment),
            "cwd": str(plan.cwd),
            "grace_seconds": plan.grace_seconds,
            "terminal": plan.terminal,
            "python_path": os.pathsep.join(search_path),
        }
