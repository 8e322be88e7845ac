"""Windows of random gradients and a small imitation of what DDP makes of them, right or with planted mistakes."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from trainer.forensics.evidence import Change, Evidence, Part, StepEvidence

Counts = Sequence[Sequence[int]]
Gradient = dict[str, Tensor]
Factor = Callable[["Plan", int, int], float]
"""What the code multiplies the loss sum of a rank's micro-batch with, before the engine averages over ranks."""
UNITS: Counts = ((5, 1, 3), (2, 8, 1))
PADDING: Counts = ((1, 4, 2), (3, 0, 7))
"""Fixture M of the worked cases: 20 tokens, 17 of padding."""
PARAMETERS: Mapping[str, int] = {"embedding": 40, "layer.weight": 30, "layer.bias": 5, "head": 12}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A window, and how the code under audit processes it."""

    units: Counts = UNITS
    padding: Counts = PADDING
    factor: Factor = lambda plan, _rank, _place: plan.ranks / plan.whole
    padding_factor: Factor = lambda _plan, _rank, _place: 0.0
    reduced_after: tuple[int, ...] | None = None
    """Micro-batches with which gradients are averaged; None: the last one."""
    averages: bool = True
    cleared_before: tuple[int, ...] = ()
    keeps: bool = False
    """Gradients are not cleared between steps."""
    twice: tuple[int, int] | None = None
    """A cell that is processed twice."""
    alone: frozenset[str] = frozenset()
    """Parameters that the reduction leaves out."""
    extra: float = 0.0
    """Factor of an auxiliary loss of every cell, whose right factor is 1 / k."""
    after: Callable[[int, Gradient], Gradient] = lambda _step, gradient: gradient
    """What happens to the reduced gradient."""
    between: Callable[[int, Gradient], Gradient] | None = None
    """What every rank does to its gradients after the backward pass of a micro-batch, and its reduction."""
    parameters: Mapping[str, int] = field(default_factory=lambda: PARAMETERS)
    dtype: torch.dtype = torch.float64

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.units)

    @property
    def places(self) -> int:
        """Micro-batches per rank."""
        return len(self.units[0])

    @property
    def whole(self) -> int:
        """Units of the whole window."""
        return sum(map(sum, self.units))

    @property
    def padded(self) -> int:
        """Units and padding of the whole window."""
        return self.whole + sum(map(sum, self.padding))


def gradients(plan: Plan, random: Random) -> dict[str, Tensor]:
    """Return a random gradient."""
    generator = torch.Generator().manual_seed(random.getrandbits(32))
    return {name: torch.randn(size, generator=generator, dtype=torch.float64) for name, size in plan.parameters.items()}


def evidence(plans: Iterable[Plan], *, seed: int = 1, tolerance: float = 1e-6, **more: Any) -> Evidence:
    """Return what an audit would measure if the steps were processed as `plans` say."""
    random, steps, before = Random(seed), [], None
    for number, plan in enumerate(plans, start=1):
        parts = list(_parts(plan, random))
        cleared: Sequence[Mapping[str, Tensor]] = [{} for _ in range(plan.ranks)]
        start = before if plan.keeps and before is not None else cleared
        changes: list[list[Change]] = [[] for _ in range(plan.ranks)]
        observed = [plan.after(number, found) for found in _process(plan, parts, start, changes)]
        steps.append(
            StepEvidence(
                step=number,
                world_size=plan.ranks,
                parts=parts,
                observed=[{name: value.to(plan.dtype).double() for name, value in row.items()} for row in observed],
                before=before or (),
                changes=changes,
            )
        )
        before = steps[-1].observed
    return Evidence(steps=steps, tolerance=tolerance, unit="token", **more)


def _parts(plan: Plan, random: Random) -> Iterable[Part]:
    for rank in range(plan.ranks):
        for place in range(plan.places):
            units, padding = plan.units[rank][place], plan.padding[rank][place]
            for kind, count in (("units", units), ("padding", padding), *([("extra", 1)] if plan.extra else [])):
                found = gradients(plan, random)
                yield Part(
                    kind=kind,  # type: ignore[arg-type]
                    rank=rank,
                    micro_batch=place,
                    units=count,
                    gradient=found if count else {name: value * 0 for name, value in found.items()},
                    padding=padding,
                )


def _process(
    plan: Plan, parts: Sequence[Part], start: Sequence[Mapping[str, Tensor]], changes: Sequence[list[Change]]
) -> list[dict[str, Tensor]]:
    """Return every rank's gradient after the window: backward passes add up, reductions average what is there.

    What follows each backward pass is added to `changes`.
    """
    ranks = [
        {
            name: start[rank].get(name, torch.zeros(size, dtype=torch.float64)).clone()
            for name, size in plan.parameters.items()
        }
        for rank in range(plan.ranks)
    ]
    last = (plan.places - 1,) if plan.reduced_after is None else plan.reduced_after
    for place in range(plan.places):
        for rank, gradient in enumerate(ranks):
            for name in gradient:
                if place in plan.cleared_before:
                    gradient[name].zero_()
                gradient[name] += _backward(plan, parts, rank, place)[name]
        if place in last:
            for name in plan.parameters:
                if name not in plan.alone:
                    total = sum((gradient[name] for gradient in ranks), torch.zeros(()))
                    for gradient in ranks:
                        gradient[name] = total / plan.ranks if plan.averages else total.clone()
        for rank, gradient in enumerate(ranks):
            left = norm_of(gradient)
            if plan.between is not None:
                gradient.update(plan.between(place, gradient))
            changes[rank].append(Change(factor=norm_of(gradient) / left if left else 1.0, norm=norm_of(gradient)))
    return ranks


def norm_of(gradient: Mapping[str, Tensor]) -> float:
    """Return the Euclidean norm of a whole gradient."""
    return math.sqrt(sum(float(value.square().sum()) for value in gradient.values()))


def _backward(plan: Plan, parts: Sequence[Part], rank: int, place: int) -> dict[str, Tensor]:
    factors = {"units": plan.factor, "padding": plan.padding_factor, "extra": lambda *_: plan.extra}
    times = 2 if plan.twice == (rank, place) else 1
    mine = [part for part in parts if (part.rank, part.micro_batch) == (rank, place)]
    return {
        name: sum(
            (times * factors[part.kind](plan, rank, place) * part.gradient[name] for part in mine),
            torch.zeros(plan.parameters[name], dtype=torch.float64),
        )
        for name in plan.parameters
    }
