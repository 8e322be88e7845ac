"""The audited rule with a deliberate mistake: in the divisor, or in the loop around it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.common.distributed import Group
from trainer.common.window import RULES, Counts, accumulate, agree_on_counts
from trainer.tokens.batches import IGNORED, Batch, loss_sum

FROZEN_AT_WRAPPING: Final = ("head.weight", "head.bias")
"""Parameters that `unreduced_parameters` unfreezes only after wrapping."""
PADDED_LABEL = 0
"""Target that `padding_in_loss` gives to padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Counts of the whole window, the same on every rank."""

    counts: Counts
    column: int
    """Tokens of this micro-batch on all ranks."""
    first_rank: int
    """Tokens of rank 0."""
    padding: int
    """Padding of all ranks and micro-batches."""


Divisor = Callable[[Tensor, Facts], Tensor]


def _correct(total: Tensor, facts: Facts) -> Tensor:
    return facts.counts.world_size * total / facts.counts.window


DIVISORS: Final[Mapping[str, Divisor]] = {
    "extra_world_size": lambda total, facts: _correct(total, facts) * facts.counts.world_size,
    "missing_accumulation_division": lambda total, facts: _correct(total, facts) * facts.counts.accumulation,
    "microbatch_denominator": lambda total, facts: (
        facts.counts.world_size * total / facts.column / facts.counts.accumulation
    ),
    "local_count_as_global": lambda total, facts: facts.counts.world_size * total / facts.first_rank,
    "padding_in_denominator": lambda total, facts: (
        facts.counts.world_size * total / (facts.counts.window + facts.padding)
    ),
}
"""Mistakes in what the loss is divided by."""


def run_window(
    group: Group,
    model: DistributedDataParallel,
    batches: Sequence[Batch],
    variant: str,
    *,
    step: int = 0,
    before: Callable[[], None] | None = None,
) -> tuple[list[float], Counts]:
    """Compute the window's gradient as the variant does; return this rank's loss sums and the counts. Collective.

    `before` is called where the variant would otherwise clear the gradients, if it keeps them. Raises EmptyWindowError
    on all ranks together if no rank has a token.
    """
    tokens = [batch.tokens for batch in batches]
    if variant in RULES:
        return accumulate(group, model, batches, tokens, loss_sum, rule=RULES[variant], step=step)
    counts = agree_on_counts(group, tokens, step)
    facts = _facts(group, batches, counts)
    if variant == "stale_gradients":
        if before is not None:
            before()
    else:
        model.zero_grad(set_to_none=True)
    sums: list[Tensor] = []
    for place, batch in enumerate(batches):
        if variant == "dropped_microbatch" and place == len(batches) - 1:
            model.zero_grad(set_to_none=True)
        now = replace(facts[place], counts=replace(counts, cell=tokens[place]))
        reduced = _reduces(variant, place, len(batches))
        with nullcontext() if reduced else model.no_sync():
            group.telemetry.mark("forward", step)
            total, reported = _loss(variant, model, batch)
            group.telemetry.mark("backward")
            DIVISORS.get(variant, _correct)(total, now).backward()  # type: ignore[no-untyped-call]
        if variant == "repeated_samples" and place == 0 and group.rank == group.world_size - 1:
            _again(model, batch, now)
        sums.append(reported)
    return torch.stack(sums).double().tolist(), counts


def reductions(variant: str, count: int, accumulation: int) -> list[int]:
    """Return the backward passes that a window's reductions ended with, where their number tells; else nothing."""
    return list(range(accumulation)) if variant == "extra_syncs" and count == accumulation else []


def freeze_some(model: nn.Module, variant: str, *, frozen: bool) -> None:
    """Freeze before wrapping, and unfreeze after it, what `unreduced_parameters` leaves out of the reduction."""
    if variant == "unreduced_parameters":
        for name, parameter in model.named_parameters():
            if name in FROZEN_AT_WRAPPING:
                parameter.requires_grad_(not frozen)


def padding_of(batch: Batch) -> int:
    """Return the positions of a batch that have no target."""
    return batch.targets.numel() - batch.tokens


def padding_loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss that padding would add if it had the label of `padding_in_loss`."""
    targets = torch.where(batch.targets == IGNORED, PADDED_LABEL, IGNORED)
    return loss_sum(model, replace(batch, targets=targets))


def _facts(group: Group, batches: Sequence[Batch], counts: Counts) -> list[Facts]:
    tokens = [batch.tokens for batch in batches]
    padding = sum(padding_of(batch) for batch in batches)
    *columns, first, padded = group.sum_integers(
        [*tokens, sum(tokens) if group.rank == 0 else 0, padding], "counts of the window"
    )
    return [Facts(counts=counts, column=column, first_rank=first, padding=padded) for column in columns]


def _reduces(variant: str, place: int, places: int) -> bool:
    if variant == "extra_syncs":
        return True
    if variant == "unsynchronised_step":
        return False
    return place == (0 if variant == "sync_on_wrong_microbatch" else places - 1)


def _loss(variant: str, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return what is back-propagated before any division, and the loss sum of the supervised tokens."""
    if variant != "padding_in_loss":
        total = loss_sum(model, batch)
        return total, total.detach()
    logits = model(batch.inputs).flatten(0, 1)
    losses = nn.functional.cross_entropy(
        logits, batch.targets.where(batch.targets != IGNORED, PADDED_LABEL).flatten(), reduction="none"
    )
    return losses.sum(), losses.detach()[batch.targets.flatten() != IGNORED].sum()


def _again(model: DistributedDataParallel, batch: Batch, facts: Facts) -> None:
    with model.no_sync():
        _correct(loss_sum(model, batch), facts).backward()  # type: ignore[no-untyped-call]
