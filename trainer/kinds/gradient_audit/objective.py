"""The gradient of a target's objective, from `loss_sum` and `count` alone: shares nothing with the code under audit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainer.targets.members import Target, TargetFault, fault_text


@dataclass(frozen=True, slots=True)
class Cell:
    """One micro-batch of one rank, prepared for the device."""

    rank: int
    place: int
    batch: Any
    count: float


@dataclass(slots=True)
class Sums:
    """Float64 sums over the cells of a window."""

    units: dict[str, Tensor] = field(default_factory=dict)
    """Sum of the gradients of all `loss_sum`, per parameter."""
    rank_mean: dict[str, Tensor] = field(default_factory=dict)
    """Each rank's sum divided by its own count, summed over ranks."""
    mean_of_means: dict[str, Tensor] = field(default_factory=dict)
    """Each micro-batch's sum divided by its own count, summed over all."""
    extra: dict[str, Tensor] = field(default_factory=dict)
    """Sum of the gradients of all auxiliary losses."""
    losses: list[list[float]] = field(default_factory=list)
    """loss_sum[rank][micro-batch]"""
    extras: list[float] = field(default_factory=list)


def cell_gradient(
    target: Target, model: nn.Module, cell: Cell, member: str, step: int
) -> tuple[float, dict[str, Tensor]]:
    """Return the value of `loss_sum` or another loss of a cell, and its gradient by parameter; zeros where it has none.

    Raises TargetFault if the loss does not depend on the parameters although the cell has units, or is not finite.
    """
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    loss = target.loss(member, model, cell.batch, rank=cell.rank, step=step)
    if not loss.requires_grad:
        if cell.count and member == "loss_sum":
            text = f"does not depend on the parameters for micro-batch {cell.place}; expected a loss with a gradient"
            raise TargetFault(fault_text(target.name, member, text, rank=cell.rank, step=step))
        return float(loss), {name: torch.zeros_like(parameter) for name, parameter in trained}
    model.zero_grad(set_to_none=True)
    with target.guarded(member, cell.rank, step):
        loss.backward()  # type: ignore[no-untyped-call]  # not autograd.grad, which reentrant checkpoints refuse
    gradient = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach()
        for name, parameter in trained
    }
    model.zero_grad(set_to_none=True)
    odd = next((name for name, item in gradient.items() if not bool(torch.isfinite(item).all())), None)
    if odd is not None:
        text = f"has a gradient of {odd} that is not finite for micro-batch {cell.place}; expected finite numbers"
        raise TargetFault(fault_text(target.name, member, text, rank=cell.rank, step=step))
    return float(loss.detach()), gradient


def window_sums(target: Target, model: nn.Module, window: Sequence[Sequence[Cell]], step: int) -> Sums:
    """Return the sums over a window; every rank's cells start from the buffers that the model has now.

    After it, the buffers are those of rank 0's window, which are the ones that DDP keeps.
    """
    sums, start = Sums(), buffers_of(model)
    kept: dict[str, Tensor] = {}
    for row in window:
        set_buffers(model, start)
        sums.losses.append([])
        total = sum(cell.count for cell in row)
        for cell in row:
            value, gradient = cell_gradient(target, model, cell, "loss_sum", step)
            sums.losses[-1].append(value)
            _add(sums.units, gradient, 1.0)
            _add(sums.rank_mean, gradient, 1 / total if total else 0.0)
            _add(sums.mean_of_means, gradient, 1 / cell.count if cell.count else 0.0)
            if target.has("extra_loss"):
                before = buffers_of(model)
                value, gradient = cell_gradient(target, model, cell, "extra_loss", step)
                set_buffers(model, before)
                sums.extras.append(value)
                _add(sums.extra, gradient, 1.0)
        kept = kept or buffers_of(model)
    set_buffers(model, kept)
    return sums


def extra_share(target: Target, world_size: int, accumulation: int) -> float:
    """Return the factor of the sum of all auxiliary losses in the objective."""
    return 1.0 if target.extra_reduction == "sum" else 1 / (world_size * accumulation)


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of all buffers."""
    return {name: value.detach().clone() for name, value in model.named_buffers()}


def set_buffers(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Set all buffers."""
    with torch.no_grad():
        for name, value in model.named_buffers():
            if name in values:
                value.copy_(values[name])


def _add(total: dict[str, Tensor], gradient: Mapping[str, Tensor], factor: float) -> None:
    for name, value in gradient.items():
        if name in total:
            total[name].add_(value.double(), alpha=factor)
        else:
            total[name] = value.double() * factor
