"""Scores the final model on the test sequences, once per token, in one process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from trainer.tokens.batches import IGNORED, make_batch
from trainer.tokens.corpus import Corpus
from trainer.tokens.model import build_model

BATCH: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """Sums over all test sequences divided by the number of their tokens."""

    loss_per_token: float
    """Nats."""
    accuracy: float
    """Share of tokens (not of sequences) predicted right."""
    tokens: int


def evaluate(parameters: Mapping[str, Tensor], corpus: Corpus, seed: int) -> TokenScores:
    """Return the scores of a model with these weights, dropout off."""
    model = build_model(seed)
    model.load_state_dict(dict(parameters))
    model.eval()
    total, right, tokens = 0.0, 0, 0
    with torch.no_grad():
        for start in range(0, len(corpus.test), BATCH):
            batch = make_batch(corpus.test[start : start + BATCH], "cpu")
            counted = batch.targets != IGNORED
            logits, targets = model(batch.inputs)[counted], batch.targets[counted]
            total += float(nn.functional.cross_entropy(logits.double(), targets, reduction="sum"))
            right += int((logits.argmax(dim=-1) == targets).sum())
            tokens += batch.tokens
    return TokenScores(loss_per_token=total / tokens, accuracy=right / tokens, tokens=tokens)
