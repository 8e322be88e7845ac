"""The ranks that save and load together: one outcome for all of them, success or the same error."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import torch.distributed as dist

from trainer.common.checkpoints import errors
from trainer.common.telemetry import Telemetry

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What went wrong on one rank, in a form that travels."""

    rank: int
    error: str
    text: str
    field: str


class Ranks:
    """Object collectives over the default process group; without one, a single rank talks to itself."""

    def __init__(self, telemetry: Telemetry | None = None) -> None:
        self._telemetry = telemetry
        joined = dist.is_available() and dist.is_initialized()
        self.rank: Final = dist.get_rank() if joined else 0
        self.world_size: Final = dist.get_world_size() if joined else 1

    def mark(self, phase: str, step: int | None = None) -> None:
        """Move this rank's breadcrumb."""
        if self._telemetry is not None:
            self._telemetry.mark(phase, step)

    def gather(self, operation: str, value: T) -> list[T]:
        """Return every rank's value, in order of rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        with self._collective(operation):
            dist.all_gather_object(values, value)
        return values

    def broadcast(self, operation: str, value: T | None) -> T:
        """Return rank 0's value on every rank."""
        if self.world_size == 1:
            return cast(T, value)
        values: list[Any] = [value]
        with self._collective(operation):
            dist.broadcast_object_list(values, src=0)
        return cast(T, values[0])

    def together(self, operation: str, action: Callable[[], T]) -> list[T]:
        """Run `action` on every rank and return all results, in order of rank.

        When it fails anywhere, every rank raises the error of the lowest failing rank, with the same text.
        """
        return unwrap(self.gather(operation, attempt(self.rank, action)))

    def on_first(self, operation: str, action: Callable[[], T]) -> T:
        """Run `action` on rank 0 alone; every rank gets its result or raises its error."""
        outcome = attempt(0, action) if self.rank == 0 else None
        agreed = cast(T | Failure, self.broadcast(operation, outcome))
        return unwrap([agreed])[0]

    def _collective(self, operation: str) -> Any:
        return self._telemetry.collective(operation) if self._telemetry is not None else nullcontext()


def attempt(rank: int, action: Callable[[], T]) -> T | Failure:
    """Return what `action` returns, or how it failed."""
    try:
        return action()
    except errors.CheckpointError as error:
        return Failure(rank=rank, error=type(error).__name__, text=str(error), field=error.field)
    except OSError as error:
        name = errors.CheckpointNotSaved.__name__
        return Failure(rank=rank, error=name, text=f"{error.strerror or error}: {error.filename}", field="")
    except Exception as error:  # whatever it is, the other ranks must hear of it instead of waiting
        name = errors.CheckpointError.__name__
        return Failure(rank=rank, error=name, text=f"{type(error).__name__}: {error}", field="")


def unwrap(outcomes: list[T | Failure]) -> list[T]:
    """Return the results, or raise the failure of the lowest rank."""
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            kind: type[errors.CheckpointError] = getattr(errors, outcome.error)
            raise kind(f"rank {outcome.rank}: {outcome.text}", outcome.field)
    return cast(list[T], outcomes)
