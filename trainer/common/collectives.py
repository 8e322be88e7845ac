"""Collectives of small numbers and objects among ranks, each with a breadcrumb; local for a single rank."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist

from trainer.common.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """Collectives of this rank; every method must be called by all ranks. With `world_size` 1 nothing is sent."""

    rank: int
    world_size: int
    telemetry: Telemetry | None = None
    """Writes the breadcrumb; None: no breadcrumb."""
    process_group: dist.ProcessGroup | None = None
    """None: the default group of all ranks. For a subgroup, `rank` and `world_size` are those within it."""

    @classmethod
    def of_default_group(cls, telemetry: Telemetry | None = None) -> Self:
        """Return the collectives of the default process group; without one, this is the only rank."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls(rank=0, world_size=1, telemetry=telemetry)
        return cls(rank=dist.get_rank(), world_size=dist.get_world_size(), telemetry=telemetry)

    def sum_integers(self, values: Sequence[int], what: str = "sum of counts") -> list[int]:
        """Return the sums over ranks of `values` (int64). Every rank passes the same number of values."""
        return [int(value) for value in self._reduced(torch.tensor(list(values), dtype=torch.int64), "SUM", what)]

    def max_integers(self, values: Sequence[int], what: str = "maximum of flags") -> list[int]:
        """Return the largest over ranks of each of `values` (int64)."""
        return [int(value) for value in self._reduced(torch.tensor(list(values), dtype=torch.int64), "MAX", what)]

    def sum_floats(self, values: Sequence[float], what: str = "sum of losses") -> list[float]:
        """Return the sums over ranks of `values` in float64."""
        return [float(value) for value in self._reduced(torch.tensor(list(values), dtype=torch.float64), "SUM", what)]

    def gather_objects(self, value: Any, what: str = "gather") -> list[Any]:
        """Return every rank's `value`, in rank order, on every rank."""
        if self.world_size == 1:
            return [value]
        gathered: list[Any] = [None] * self.world_size
        with self._crumb(what):
            dist.all_gather_object(gathered, value, group=self.process_group)
        return gathered

    def broadcast_object(self, value: Any, source: int = 0, what: str = "broadcast") -> Any:
        """Return rank `source`'s `value` on every rank; `source` counts within the group."""
        if self.world_size == 1:
            return value
        holder = [value]
        with self._crumb(what):
            dist.broadcast_object_list(holder, src=self._global(source), group=self.process_group)
        return holder[0]

    def barrier(self, what: str = "barrier") -> None:
        """Wait until every rank has called this."""
        self.sum_integers([1], what)

    def _global(self, rank: int) -> int:
        return rank if self.process_group is None else dist.get_global_rank(self.process_group, rank)

    def _reduced(self, tensor: torch.Tensor, operation: str, what: str) -> list[Any]:
        if self.world_size > 1:
            with self._crumb(what):
                dist.all_reduce(tensor, op=getattr(dist.ReduceOp, operation), group=self.process_group)
        values: list[Any] = tensor.tolist()
        return values

    def _crumb(self, what: str) -> AbstractContextManager[None]:
        return nullcontext() if self.telemetry is None else self.telemetry.collective(what)
