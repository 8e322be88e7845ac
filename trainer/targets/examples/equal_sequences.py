"""Example: each sequence has the same total weight, however long it is; `count` is a number of sequences."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.targets.examples.causal_lm import Batch, CausalLanguageModel
from trainer.targets.examples.small_models import IGNORED


class EqualSequences(CausalLanguageModel):
    """Each sequence has the same total weight."""

    name = "equal-sequences"
    unit = "sequence"

    def window(self, step: int, rank: int, world_size: int) -> list[Batch]:
        """Return two batches: with four sequences each on rank 0, one and three fewer elsewhere."""
        draw = torch.Generator().manual_seed(1000 * step + rank)
        found = []
        for place in range(2):
            batch = self.batch(draw, longest=16)
            found.append({key: value[: 4 - (rank + place) % 4] for key, value in batch.items()})
        return found

    def loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum over sequences of the mean loss of a sequence's labels."""
        ids, labels = batch["input_ids"], batch["labels"][:, 1:]
        places = torch.arange(ids.shape[1], device=ids.device)
        logits = model(ids, places.expand_as(ids), batch["attention_mask"]).logits[:, :-1]
        losses = functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
        ).view_as(labels)
        return (losses.sum(dim=1) / (labels != IGNORED).sum(dim=1)).sum()

    def count(self, batch: Batch) -> int:
        """Return the sequences."""
        return len(batch["labels"])

    def padding_count(self, batch: Batch) -> int:
        """Return 0: padding adds no sequences."""
        return 0

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> None:
        """Leave the gradient of the mean over all ranks' sequences."""
        model.zero_grad(set_to_none=True)
        sequences = ctx.all_reduce_sum(sum(len(batch["labels"]) for batch in batches))
        for place, batch in enumerate(batches):
            with nullcontext() if place == len(batches) - 1 else model.no_sync():
                loss = self.loss_sum(model, batch) * ctx.world_size / sequences
                loss.backward()
