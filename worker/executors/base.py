"""Interface of executors: they take a plan and return a handle; where an attempt runs is up to the executor.

The worker's loop is a single thread, so nothing here may block for long: a handle returns the last known state, and an
executor that has to query elsewhere does so in the background.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from trainer.contract.placement import Offer
from worker.plan import AttemptPlan

Reference = Mapping[str, Any]
"""How an executor finds an attempt again: JSON that the worker stores with the attempt and never interprets."""


class Phase(StrEnum):
    """State of an attempt according to its executor."""

    LOOKING = "looking"
    """Not known yet; ask again."""
    ABSENT = "absent"
    """It was never started."""
    WAITING = "waiting"
    """Accepted and waiting."""
    RUNNING = "running"
    UNREACHABLE = "unreachable"
    """It may or may not be running; there is no response at the moment."""
    ENDED = "ended"
    """None of its processes runs any more."""


class Fate(StrEnum):
    """What is known about the end of an attempt."""

    REPORTED = "reported"
    """exit.json records how every rank ended."""
    LOST = "lost"
    """Its supervisor is gone and left no exit.json."""
    REBOOTED = "rebooted"
    """The machine was restarted in between."""
    GONE = "gone"
    """The folder of the run was removed while it was active, so it could not report."""
    NO_SPACE = "no_space"
    """exit.json could not be written."""
    NOT_STARTED = "not_started"
    """It was accepted but could not be started; `Status.why` says why."""
    REQUEUED = "requeued"
    """A scheduler ended it and put it back into its queue: another attempt continues."""
    PREEMPTED = "preempted"
    """A scheduler ended it for the sake of other jobs."""
    TIMED_OUT = "timed_out"
    """A scheduler ended it at the time limit of the job."""
    OUT_OF_MEMORY = "out_of_memory"
    """A scheduler recorded that a process was killed for lack of memory."""
    NODE_LOST = "node_lost"
    """A node failed."""
    TAKEN = "taken"
    """Somebody else cancelled it in the scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What an executor currently knows about an attempt."""

    phase: Phase
    why: str = ""
    """Why it waits, could not be started, or was ended by a scheduler, as a text for users."""
    since: float | None = None
    """Unix seconds at which it started to run; None: when it was started."""
    fate: Fate = Fate.REPORTED
    """Meaningful once it has ended."""
    node: str = ""
    """The node that failed."""
    processes_ended: int = 0
    """Processes that had to be killed, in addition to those counted in exit.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """The process of one rank, as far as it is known."""

    alive: bool
    stopped: bool = False
    """Suspended by a signal or a debugger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankUse:
    """Resource usage of one rank."""

    cpu_seconds: float
    rss_bytes: int
    gpu_bytes: int | None = None
    gpu_percent: float | None = None


class Handle(Protocol):
    """One attempt that was started by this worker or an earlier one."""

    def status(self) -> Status:
        """Return the current status. After ENDED and ABSENT it does not change."""

    def reference(self) -> Reference | None:
        """Return the reference for finding the attempt again, None while it is unknown."""

    def descriptor(self) -> int | None:
        """Return a file descriptor that becomes readable when the status may have changed, None if there is none."""

    def ranks(self) -> Mapping[int, RankProcess]:
        """Return the processes of the known ranks; ranks that are not visible are left out."""

    def usage(self, devices: Mapping[int, str]) -> Mapping[int, RankUse]:
        """Return the resource usage of the live ranks; `devices` maps rank to device, as reported by the rank."""

    def ask_for_stacks(self) -> None:
        """Ask every rank that can respond to write its stacks to its file; returns immediately."""

    def take_stacks(self, ranks: Collection[int]) -> None:
        """Write the stacks of ranks that did not respond, by any available means; blocks for a few seconds."""

    def stop(self) -> None:
        """Request the end of all processes within the plan's grace period; idempotent."""

    def kill_ranks(self) -> int:
        """Kill only the processes of the ranks, and return how many were alive."""

    def destroy(self) -> None:
        """Kill everything, including supervisors; `status` reports the outcome."""

    def close(self) -> None:
        """Release the handle's resources; the attempt is not affected."""


class Devices(Protocol):
    """The devices that an executor offers to runs."""

    @property
    def document(self) -> dict[str, Any] | None:
        """The devices published with the heartbeat; None until they are known."""

    def poll(self) -> bool:
        """Check for new information, and return whether there is any."""

    def offer(self) -> Offer:
        """Return what is available to a run."""

    def busy(self) -> dict[int, str]:
        """Return the GPUs used by other processes, and how."""


class Executor(Protocol):
    """Starts attempts and finds those that an earlier worker started."""

    name: str
    """Its name in `DDP_AUDIT_EXECUTOR`."""

    @property
    def devices(self) -> Devices:
        """Its devices."""

    def start(self, plan: AttemptPlan) -> Handle:
        """Start an attempt. Raises OSError if that fails; then none of its processes runs."""

    def attach(self, plan: AttemptPlan, reference: Reference | None) -> Handle:
        """Return the handle of an attempt that may have been started earlier; its status tells whether it was."""

    def close(self) -> None:
        """Release the executor's resources; attempts continue."""
