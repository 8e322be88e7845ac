"""Runs a program in the terminal of the command that recorded it; every other stage as the local executor does."""

import os
import subprocess
from typing import Final

from app.places import module_argv, module_environment
from app.settings import Settings
from worker.executors.base import Devices, Reference
from worker.executors.local.executor import SHIM, LocalExecutor
from worker.executors.local.handle import LocalHandle
from worker.executors.local.warm import Child
from worker.plan import AttemptPlan

STDERR: Final = 2


class ForegroundExecutor:
    """The supervisor belongs to this process's session and group: Ctrl-C and the end of the terminal reach the program.

    If this process is killed, supervisor and program continue, and another worker takes over.
    """

    name = "foreground"

    def __init__(self, settings: Settings, *, output_to_stderr: bool = False) -> None:
        """With `output_to_stderr` the program's standard output is shown on standard error."""
        self._local = LocalExecutor(settings.model_copy(update={"warm_start": False}))
        self._output = STDERR if output_to_stderr else None
        self.devices: Devices = self._local.devices

    def start(self, plan: AttemptPlan) -> LocalHandle:
        """Start the supervisor in this session. Raises OSError."""
        if not plan.terminal:
            return self._local.start(plan)
        return self._local.launch(plan, self._begin)

    def attach(self, plan: AttemptPlan, reference: Reference | None) -> LocalHandle:
        """Return the handle of an attempt that may have been started earlier."""
        return self._local.attach(plan, reference)

    def close(self) -> None:
        """Release its resources; the program continues."""
        self._local.close()

    def _begin(self, plan: AttemptPlan) -> Child:
        environment = module_environment({**os.environ, **plan.environment})
        argv = module_argv(SHIM, str(plan.paths.plan))
        return subprocess.Popen(argv, env=environment, stdout=self._output)
