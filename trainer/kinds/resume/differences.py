"""Differences between the final states of two trajectories, tensor by tensor and bit by bit."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainer.common.checkpoints.rng import rng_difference
from trainer.kinds.resume.evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference between two tensors that should be equal."""

    largest: float
    """Largest absolute difference of a component; infinite if one is missing, has another shape, or is NaN."""
    unequal: int
    """Components whose bits differ; 0 and -0 count as different although their difference is 0."""
    why: str = ""
    """Why the numbers cannot be compared: both types, both shapes, or that one is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One trajectory compared with the uninterrupted one."""

    name: str
    parameters: Mapping[str, Difference]
    optimizer: Mapping[str, Difference]
    losses: Difference
    rng: Mapping[int, list[str]] = field(default_factory=dict)
    """Generators that differ, per rank."""
    ids: Mapping[int, int | None] = field(default_factory=dict)
    """First update whose ids differ, per rank; None if all are equal."""

    @property
    def same(self) -> bool:
        """Whether every compared bit is equal."""
        tensors = [*self.parameters.values(), *self.optimizer.values(), self.losses]
        generators = any(self.rng.values())
        return not (any(item.unequal for item in tensors) or generators or self.other_ids)

    @property
    def other_ids(self) -> list[int]:
        """Ranks that drew different ids."""
        return [rank for rank, step in self.ids.items() if step is not None]


def compare(left: Evidence, right: Evidence) -> Comparison:
    """Return how `right` differs from `left`."""
    ranks = range(max(len(left.ranks), len(right.ranks)))
    return Comparison(
        name=right.name,
        parameters=tensor_differences(left.parameters, right.parameters),
        optimizer=tensor_differences(left.optimizer, right.optimizer),
        losses=difference(left.losses, right.losses),
        rng={rank: rng_difference(left.ranks[rank]["rng"], right.ranks[rank]["rng"]) for rank in ranks},
        ids={rank: first_other_ids(left, right, rank) for rank in ranks},
    )


def tensor_differences(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> dict[str, Difference]:
    """Return the difference of every tensor on either side, in the order of the left side."""
    names = [*left, *(name for name in right if name not in left)]
    return {name: difference(left.get(name), right.get(name)) for name in names}


def difference(left: Tensor | None, right: Tensor | None) -> Difference:
    """Return the difference of two tensors; infinite if one is missing or has a different shape or type."""
    if left is None or right is None or left.shape != right.shape or left.dtype != right.dtype:
        present = left if left is not None else right
        unequal = 0 if present is None else max(1, present.numel())
        return Difference(largest=math.inf, unequal=unequal, why=_incomparable(left, right))
    if left.numel() == 0:
        return Difference(largest=0.0, unequal=0)
    size = left.element_size()
    bytes_left, bytes_right = (
        side.contiguous().flatten().view(torch.uint8).reshape(-1, size) for side in (left, right)
    )
    unequal = int((bytes_left != bytes_right).any(dim=1).sum())
    if not unequal:  # equal bits are equal, even if they encode "not a number"
        return Difference(largest=0.0, unequal=0)
    largest = float((left.double() - right.double()).abs().max())
    return Difference(largest=largest if math.isfinite(largest) else math.inf, unequal=unequal)


def _incomparable(left: Tensor | None, right: Tensor | None) -> str:
    if left is None or right is None:
        return "missing on one side"
    if left.dtype != right.dtype:
        return f"{left.dtype} and {right.dtype}".replace("torch.", "")
    return f"shapes {list(left.shape)} and {list(right.shape)}"


def largest(differences: Mapping[str, Difference]) -> float:
    """Return the largest difference of all tensors."""
    return max((item.largest for item in differences.values()), default=0.0)


def first_other_ids(left: Evidence, right: Evidence, rank: int) -> int | None:
    """Return the first update (from 1) in which a rank drew different ids, None if it never did."""
    ours, theirs = (side.ranks[rank]["sampler"]["ids"] for side in (left, right))
    common = min(len(ours), len(theirs))
    other = (ours[:common] != theirs[:common]).flatten(1).any(dim=1).nonzero()
    if len(other):
        return int(other[0]) + 1
    return None if len(ours) == len(theirs) else common + 1


def first_other_loss(left: Evidence, right: Evidence) -> int | None:
    """Return the first update (from 1) whose loss has different bits, None if all are equal."""
    common = min(len(left.losses), len(right.losses))
    other = (left.losses[:common] != right.losses[:common]).nonzero()
    if len(other):
        return int(other[0]) + 1
    return None if len(left.losses) == len(right.losses) else common + 1
