"""States, reasons and the table of allowed state changes."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """State of a run."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        """Whether this state is final."""
        return self in FINAL


class Reason(StrEnum):
    """Why a run reached its final state."""

    COMPLETED = "completed"
    CANCELLED_BY_USER = "cancelled_by_user"
    RANK_EXIT = "rank_exit"
    RANK_SIGNAL = "rank_signal"
    OUT_OF_MEMORY = "out_of_memory"
    HANG = "hang"
    TIME_LIMIT = "time_limit"
    INVALID_RESULT = "invalid_result"
    LAUNCH_ERROR = "launch_error"
    NO_DEVICES = "no_devices"
    DISK_FULL = "disk_full"
    WORKER_LOST = "worker_lost"
    PREEMPTED = "preempted"
    NODE_FAILURE = "node_failure"


FINAL: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST})

MOVES: Final[Mapping[State, frozenset[State]]] = {
    State.QUEUED: frozenset({State.STARTING, State.CANCELLED, State.FAILED}),
    State.STARTING: frozenset({State.RUNNING, State.STOPPING, State.FAILED, State.LOST}),
    State.RUNNING: frozenset({State.STOPPING, State.SUCCEEDED, State.FAILED, State.LOST}),
    State.STOPPING: frozenset({State.CANCELLED, State.FAILED, State.LOST}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
    State.LOST: frozenset(),
}

REASONS: Final[Mapping[State, frozenset[Reason]]] = {
    State.SUCCEEDED: frozenset({Reason.COMPLETED}),
    State.CANCELLED: frozenset({Reason.CANCELLED_BY_USER}),
    State.LOST: frozenset({Reason.WORKER_LOST, Reason.NODE_FAILURE}),
    State.FAILED: frozenset(Reason)
    - {Reason.COMPLETED, Reason.CANCELLED_BY_USER, Reason.WORKER_LOST, Reason.NODE_FAILURE},
}
"""Reasons allowed for each final state; other states have no reason."""


class ForbiddenMove(ValueError):
    """A state change that is not in the table, or a reason that is not allowed for the state."""


def check_move(origin: State, target: State, reason: Reason | None) -> None:
    """Raise ForbiddenMove unless the tables allow `origin` -> `target` with `reason`."""
    if target not in MOVES[origin]:
        raise ForbiddenMove(f"{origin} -> {target} is not allowed")
    if target.is_final and reason not in REASONS[target]:
        raise ForbiddenMove(f"{target} cannot carry the reason {reason}")
    if not target.is_final and reason is not None:
        raise ForbiddenMove(f"{target} is not final and carries no reason, got {reason}")
