"""Sequences as padded tensors, and the loss as a sum over supervised tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.tokens.corpus import PADDING, START, Sequence4

IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch: inputs and targets [B, T], T the longest length (or the requested width)."""

    inputs: Tensor
    targets: Tensor
    """IGNORED where there is no target, so that padding never counts."""
    tokens: int
    """Supervised tokens: positions that contribute to the loss."""


def make_batch(sequences: Sequence[Sequence4], device: torch.device | str, width: int = 0) -> Batch:
    """Return `sequences` as a batch. Inputs are the start symbol and all symbols but the last; `width` pads further."""
    width = max([width, *map(len, sequences)])
    inputs = [[START, *sequence[:-1]] + [PADDING] * (width - len(sequence)) for sequence in sequences]
    targets = [[*sequence] + [IGNORED] * (width - len(sequence)) for sequence in sequences]
    return Batch(
        inputs=torch.tensor(inputs, device=device),
        targets=torch.tensor(targets, device=device),
        tokens=sum(map(len, sequences)),
    )


def without_targets(batch: Batch) -> Batch:
    """Return the same inputs with every target ignored, for a rank that is locally empty but still takes part."""
    return Batch(inputs=batch.inputs, targets=torch.full_like(batch.targets, IGNORED), tokens=0)


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the sum over supervised tokens of the cross-entropy, in nats; 0 with a graph when there are none."""
    logits = model(batch.inputs)
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )
