"""The ranks that save and load together: one outcome for all of them, success or the same error."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from trainer.common.checkpoints import errors
from trainer.common.collectives import Collectives

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What went wrong on one rank, in a form that travels."""

    rank: int
    error: str
    text: str
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks(Collectives):
    """The ranks of the default process group, or a single one, with outcomes that all of them share."""

    def mark(self, phase: str, step: int | None = None) -> None:
        """Move this rank's breadcrumb."""
        if self.telemetry is not None:
            self.telemetry.mark(phase, step)

    def together(self, what: str, action: Callable[[], T]) -> list[T]:
        """Run `action` on every rank and return all results, in order of rank.

        When it fails anywhere, every rank raises the error of the lowest failing rank, with the same text.
        """
        return unwrap(self.gather_objects(attempt(self.rank, action), what))

    def on_first(self, what: str, action: Callable[[], T]) -> T:
        """Run `action` on rank 0 alone; every rank gets its result or raises its error."""
        outcome = attempt(0, action) if self.rank == 0 else None
        agreed: T | Failure = self.broadcast_object(outcome, what=what)
        return unwrap([agreed])[0]


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
