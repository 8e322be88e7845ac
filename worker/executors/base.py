"""What an executor is to the rest of the worker: a plan goes in, a handle comes out; where it runs is its own affair.

The worker's loop is one thread, so nothing here may block for long: a handle answers with what it knows now, and an
executor that has to ask elsewhere does so beside the loop.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from trainer.contract.placement import Offer
from worker.plan import AttemptPlan

Reference = Mapping[str, Any]
"""How an executor finds an attempt again: JSON that the worker keeps with the attempt and never looks into."""


class Phase(StrEnum):
    """Where an attempt is, as its executor sees it."""

    LOOKING = "looking"
    """Not known yet; asked again."""
    ABSENT = "absent"
    """Nothing of it was ever started."""
    WAITING = "waiting"
    """Accepted, and waiting for its turn."""
    RUNNING = "running"
    UNREACHABLE = "unreachable"
    """It may run or not; nobody answers at the moment."""
    ENDED = "ended"
    """Nothing of it runs any more."""


class Fate(StrEnum):
    """How much is known about an end."""

    REPORTED = "reported"
    """exit.json says how every rank ended."""
    LOST = "lost"
    """Its supervisor is gone and left no exit.json."""
    REBOOTED = "rebooted"
    """The machine was started anew in between."""
    GONE = "gone"
    """The folder of the run was removed under it, so there was nowhere to report to."""
    NO_SPACE = "no_space"
    """exit.json could not be written."""
    NOT_STARTED = "not_started"
    """It was accepted and could not be started after all; `Status.why` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What an executor knows about an attempt at this moment."""

    phase: Phase
    why: str = ""
    """Why it waits, or could not be started, in words for a person."""
    since: float | None = None
    """Unix seconds since when it runs; None: since it was started."""
    fate: Fate = Fate.REPORTED
    """Meaningful once it has ended."""
    processes_ended: int = 0
    """Processes that had to be ended by force, beyond those that exit.json counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """The process of one rank, as far as it is known from where it runs."""

    alive: bool
    stopped: bool = False
    """Suspended by a signal or a debugger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankUse:
    """What one rank has used of its machine."""

    cpu_seconds: float
    rss_bytes: int
    gpu_bytes: int | None = None
    gpu_percent: float | None = None


class Handle(Protocol):
    """One attempt that was started, by this worker or an earlier one."""

    def status(self) -> Status:
        """Return what is known now. After ENDED and ABSENT the answer does not change."""

    def reference(self) -> Reference | None:
        """Return how the attempt is found again, None while that is not known."""

    def descriptor(self) -> int | None:
        """Return what becomes readable when the status has probably changed, None where there is no such thing."""

    def ranks(self) -> Mapping[int, RankProcess]:
        """Return the processes of the ranks that are known; a rank nobody can see is not in it."""

    def usage(self, devices: Mapping[int, str]) -> Mapping[int, RankUse]:
        """Return what the living ranks use; `devices` maps rank to device, as the rank itself calls it."""

    def ask_for_stacks(self) -> None:
        """Ask every rank that can answer to write its stacks into its file; returns at once."""

    def take_stacks(self, ranks: Collection[int]) -> None:
        """Write the stacks of ranks that did not answer, by whatever means there are; blocks for a few seconds."""

    def stop(self) -> None:
        """Ask for the end of everything within the plan's grace; asking again changes nothing."""

    def kill_ranks(self) -> int:
        """Kill the processes of the ranks and nothing else, and return how many were there to die."""

    def destroy(self) -> None:
        """End everything by force, supervisors included; `status` tells the rest."""

    def close(self) -> None:
        """Give back what the handle holds; the attempt is not touched."""


class Devices(Protocol):
    """What an executor has to offer to runs."""

    @property
    def document(self) -> dict[str, Any] | None:
        """What the heartbeat publishes; None until it is known."""

    def poll(self) -> bool:
        """Look whether something new is known, and return whether it is."""

    def offer(self) -> Offer:
        """Return what a run may get from here."""

    def busy(self) -> dict[int, str]:
        """Return the GPUs in use by somebody else, with how."""


class Executor(Protocol):
    """Starts attempts and finds those that an earlier worker started."""

    name: str
    """As `DDP_AUDIT_EXECUTOR` names it."""

    @property
    def devices(self) -> Devices:
        """What it has to offer."""

    def start(self, plan: AttemptPlan) -> Handle:
        """Start an attempt. Raises OSError when it cannot be; then nothing of it runs."""

    def attach(self, plan: AttemptPlan, reference: Reference | None) -> Handle:
        """Return the handle of an attempt that may have been started earlier; its status says whether it was."""

    def close(self) -> None:
        """Give back what the executor holds; attempts go on."""
