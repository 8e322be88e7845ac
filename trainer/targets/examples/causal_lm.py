"""Example: a causal language model in Hugging Face's style, whose labels are -100 where they are ignored."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.targets.examples.small_models import IGNORED, CausalTransformer

Batch = dict[str, Tensor]


class CausalLanguageModel:
    """A causal language model whose labels are -100 where they are ignored."""

    name = "causal-lm"
    unit = "token"

    def build_model(self) -> nn.Module:
        """Return the model, without dropout."""
        return CausalTransformer()

    def window(self, step: int, rank: int, world_size: int) -> list[Batch]:
        """Return three padded batches of sequences; prompts and padding have the label -100."""
        draw = torch.Generator().manual_seed(1000 * step + rank)
        return [self.batch(draw, longest=10 + 8 * rank + 4 * place) for place in range(3)]

    def batch(self, draw: torch.Generator, longest: int) -> Batch:
        """Return four sequences of up to `longest` tokens."""
        lengths = torch.randint(6, longest + 1, (4,), generator=draw)
        ids = torch.randint(1, 32, (4, int(lengths.max())), generator=draw)
        places = torch.arange(ids.shape[1])
        inside = places < lengths.unsqueeze(1)
        prompt = places < 3
        return {
            "input_ids": ids * inside,
            "attention_mask": inside.long(),
            "labels": torch.where(inside & ~prompt, ids, IGNORED),
        }

    def loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of the losses of all labels that are not ignored."""
        places = torch.arange(batch["input_ids"].shape[1], device=batch["input_ids"].device)
        output = model(batch["input_ids"], places.expand_as(batch["input_ids"]), batch["attention_mask"])
        logits, labels = output.logits[:, :-1], batch["labels"][:, 1:]
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")

    def count(self, batch: Batch) -> int:
        """Return the labels that count: those after the shift that are not ignored."""
        return int((batch["labels"][:, 1:] != IGNORED).sum())

    def padding_count(self, batch: Batch) -> int:
        """Return the labels after the shift that are ignored."""
        return int((batch["labels"][:, 1:] == IGNORED).sum())

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> None:
        """Leave the window's gradient: the sum over all ranks' tokens, divided by their number."""
        model.zero_grad(set_to_none=True)
        tokens = ctx.all_reduce_sum(sum(self.count(batch) for batch in batches))
        for place, batch in enumerate(batches):
            with nullcontext() if place == len(batches) - 1 else model.no_sync():
                loss = self.loss_sum(model, batch) * ctx.world_size / tokens  # DDP divides by world_size
                loss.backward()
