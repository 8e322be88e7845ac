"""The ranks that save and load together: one outcome for all of them, success or the same error."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from trainer.common.checkpoints import errors
from trainer.common.collectives import Collectives

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error of one rank, in serialisable form."""

    rank: int
    error: str
    text: str
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks(Collectives):
    """The ranks of the default process group, or a single rank, with outcomes shared by all of them."""

    def mark(self, phase: str, step: int | None = None) -> None:
        """Update this rank's breadcrumb."""
        if self.telemetry is not None:
            self.telemetry.mark(phase, step)

    def together(self, what: str, action: Callable[[], T]) -> list[T]:
        """Run `action` on every rank and return all results, in order of rank.

        If it fails on any rank, every rank raises the error of the lowest failing rank, with the same text.
        """
        return unwrap(self.gather_objects(attempt(self.rank, action), what))

    def on_first(self, what: str, action: Callable[[], T]) -> T:
        """Run `action` only on rank 0; every rank gets its result or raises its error."""
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
    except Exception as error:  # whatever it is, it must be reported to the other ranks instead of letting them wait
        name = errors.CheckpointError.__name__
        return Failure(rank=rank, error=name, text=f"{type(error).__name__}: {error}", field="")


def unwrap(outcomes: list[T | Failure]) -> list[T]:
    """Return the results, or raise the failure of the lowest rank."""
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            kind: type[errors.CheckpointError] = getattr(errors, outcome.error)
            raise kind(f"rank {outcome.rank}: {outcome.text}", outcome.field)
    return cast(list[T], outcomes)
