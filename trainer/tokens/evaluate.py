"""Loss per token and token accuracy over a set of sequences; each is counted once, whatever the number of ranks."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import nn

from trainer.common.distributed import Group
from trainer.contract.normalisation import EmptyWindowError
from trainer.tokens.batches import IGNORED, make_batch
from trainer.tokens.corpus import Sequence4

BATCH: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Sums over ranks divided by the summed count, in float64; never a mean of rank means."""

    loss_per_token: float
    """Nats."""
    token_accuracy: float
    """Share of correctly predicted tokens, not of sequences."""
    tokens: int

    def document(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


def evaluate(group: Group, model: nn.Module, sequences: Sequence[Sequence4]) -> Evaluation:
    """Evaluate `model` (not its DDP wrapper) on its own device. Collective; restores training mode afterwards.

    Draws no random numbers and writes no buffer, so it does not affect training. Raises EmptyWindowError.
    """
    training = model.training
    model.eval()
    try:
        loss, right, tokens = _local_sums(model, sequences[group.rank :: group.world_size])
    finally:
        model.train(training)
    total = group.sum_floats([loss], "evaluation loss")[0]
    all_right, all_tokens = group.sum_integers([right, tokens], "evaluation counts")
    if all_tokens <= 0:
        raise EmptyWindowError(f"nothing to evaluate: {len(sequences)} sequences with {all_tokens} tokens")
    return Evaluation(loss_per_token=total / all_tokens, token_accuracy=all_right / all_tokens, tokens=all_tokens)


def _local_sums(model: nn.Module, sequences: Sequence[Sequence4]) -> tuple[float, int, int]:
    """Return the loss in nats, the correctly predicted tokens, and all tokens of these sequences."""
    device = next(model.parameters()).device
    loss, right, tokens = 0.0, 0, 0
    for start in range(0, len(sequences), BATCH):
        batch = make_batch(sequences[start : start + BATCH], device)
        with torch.no_grad():
            logits = model(batch.inputs).flatten(0, 1)
        targets = batch.targets.flatten()
        loss += float(
            nn.functional.cross_entropy(logits.double(), targets, ignore_index=IGNORED, reduction="sum").item()
        )
        right += int((logits.argmax(1) == targets).sum().item())
        tokens += batch.tokens
    return loss, right, tokens
