"""One accumulation window with DDP: a global token count, forward and backward inside `no_sync`, one reduction."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.common.distributed import Group
from trainer.contract.normalisation import EmptyWindowError

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts a rule may divide by."""

    cell: int
    """Supervised tokens of this micro-batch."""
    rank: int
    """Supervised tokens of this rank's window."""
    window: int
    """Supervised tokens of the whole window: all ranks, all micro-batches."""
    world_size: int
    accumulation: int


Rule = Callable[[Tensor, Counts], Tensor]
"""Turns the loss sum of one micro-batch into what is back-propagated."""


def correct(loss_sum: Tensor, counts: Counts) -> Tensor:
    """W * S / N: DDP's mean over ranks divides by W, so W cancels and N remains."""
    return counts.world_size * loss_sum / counts.window


def mean_of_means(loss_sum: Tensor, counts: Counts) -> Tensor:
    """The mean of each micro-batch, divided by their number: the tokens of a short batch get too much weight."""
    return loss_sum / counts.cell / counts.accumulation


def rank_mean(loss_sum: Tensor, counts: Counts) -> Tensor:
    """The rank's own mean over its window: the tokens of a rank with few tokens get too much weight."""
    return loss_sum / counts.rank


def missing_world_size(loss_sum: Tensor, counts: Counts) -> Tensor:
    """Divided by N alone: DDP's division by W is not compensated."""
    return loss_sum / counts.window


def extra_accumulation_division(loss_sum: Tensor, counts: Counts) -> Tensor:
    """Divided by the number of micro-batches although N already covers the whole window."""
    return correct(loss_sum, counts) / counts.accumulation


RULES: Final[dict[str, Rule]] = {
    rule.__name__: rule for rule in (correct, mean_of_means, rank_mean, missing_world_size, extra_accumulation_division)
}


def agree_on_counts(group: Group, tokens: Sequence[int], step: int) -> Counts:
    """Return the counts of the window before its first backward; `cell` is still 0. Collective.

    `tokens` are this rank's counts per micro-batch. Raises EmptyWindowError on all ranks together if none has any.
    """
    window = group.sum_integers([sum(tokens)], "token count")[0]
    if window <= 0:
        raise EmptyWindowError(
            f"empty window at step {step}: the global count of supervised tokens is {window}; all {group.world_size} "
            "ranks stop together, because a mean over zero tokens is undefined. Check labels, masks and ignored targets"
        )
    return Counts(cell=0, rank=sum(tokens), window=window, world_size=group.world_size, accumulation=len(tokens))


def accumulate(
    group: Group,
    model: DistributedDataParallel,
    batches: Sequence[Item],
    tokens: Sequence[int],
    loss_sum: Callable[[nn.Module, Item], Tensor],
    *,
    rule: Rule = correct,
    step: int = 0,
) -> tuple[list[float], Counts]:
    """Compute the window's gradient in `model` and return this rank's loss sums per micro-batch, and the counts.

    Gradients are cleared first. Every micro-batch but the last runs forward **and** backward inside `no_sync()`: the
    forward pass decides whether the backward pass reduces. A rank without tokens still takes part.
    """
    counts = agree_on_counts(group, tokens, step)
    model.zero_grad(set_to_none=True)
    sums: list[Tensor] = []
    for place, batch in enumerate(batches):
        with nullcontext() if place == len(batches) - 1 else model.no_sync():
            group.telemetry.mark("forward", step)
            total = loss_sum(model, batch)
            group.telemetry.mark("backward")
            rule(total, _of_cell(counts, tokens[place])).backward()  # type: ignore[no-untyped-call]
        sums.append(total.detach())
    return torch.stack(sums).double().tolist(), counts


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy on the CPU of every parameter's gradient; a missing one is an error, not a zero."""
    missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    if missing:
        raise ValueError(f"no gradient reached {', '.join(missing)}")
    return {
        name: parameter.grad.detach().cpu().clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def _of_cell(counts: Counts, cell: int) -> Counts:
    return Counts(
        cell=cell,
        rank=counts.rank,
        window=counts.window,
        world_size=counts.world_size,
        accumulation=counts.accumulation,
    )
