"""What an executor is to the rest of the worker: a plan goes in, a handle comes out."""

from typing import Protocol

from trainer.contract.paths import AttemptPaths
from worker.executors.local.processes import Identity
from worker.plan import AttemptPlan


class Handle(Protocol):
    """One attempt that was started, by this worker or an earlier one."""

    @property
    def identity(self) -> Identity:
        """The supervisor's process."""

    @property
    def alive(self) -> bool:
        """Whether the supervisor still runs."""

    @property
    def returncode(self) -> int | None:
        """The supervisor's exit code, negative for a signal; None while it runs or when another worker started it."""

    def descriptor(self) -> int | None:
        """Return what becomes readable when the supervisor ends, None where there is no such thing."""

    def terminate(self) -> None:
        """Ask the supervisor to end everything; asking again changes nothing."""

    def destroy(self) -> int:
        """End supervisor and every process of the attempt by force and return how many were found; blocks briefly."""

    def close(self) -> None:
        """Give back what the handle holds; the attempt is not touched."""


class Executor(Protocol):
    """Starts attempts and finds those that an earlier worker started."""

    def start(self, plan: AttemptPlan) -> Handle:
        """Start an attempt. Raises OSError when it cannot be; then nothing of it runs."""

    def adopt(self, paths: AttemptPaths, marker: str) -> Handle | None:
        """Return the handle of an attempt started earlier, None when its supervisor is gone."""

    def end_orphans(self, marker: str) -> int:
        """End processes of an attempt whose supervisor is gone, and return how many there were."""
