"""Example: documents packed into rows, with masks that keep each document to itself."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.targets.examples.causal_lm import Batch, CausalLanguageModel
from trainer.targets.examples.small_models import IGNORED


class PackedSequences(CausalLanguageModel):
    """Documents packed into rows, with masks between them."""

    name = "packed-sequences"
    unit = "token"
    ROW = 40

    def batch(self, draw: torch.Generator, longest: int) -> Batch:
        """Return two rows of documents; `segments` numbers them, `positions` restart, first tokens have no target."""
        rows = [self.row(draw, longest) for _ in range(2)]
        return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}

    def row(self, draw: torch.Generator, longest: int) -> Batch:
        """Return one row of whole documents, padded at its end."""
        ids, segments = torch.zeros(self.ROW, dtype=torch.long), torch.zeros(self.ROW, dtype=torch.long)
        positions, targets = torch.zeros(self.ROW, dtype=torch.long), torch.full((self.ROW,), IGNORED)
        begin, number = 0, 0
        while True:
            length = int(torch.randint(4, longest + 1, (), generator=draw))
            if begin + length > self.ROW:
                return {"input_ids": ids, "segments": segments, "positions": positions, "targets": targets}
            document, number = torch.randint(1, 32, (length,), generator=draw), number + 1
            ids[begin : begin + length], segments[begin : begin + length] = document, number
            positions[begin : begin + length] = torch.arange(length)
            targets[begin : begin + length - 1] = document[1:]  # the last token predicts nothing: the next is foreign
            begin += length

    def loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of the losses of all targets inside documents."""
        output = model(batch["input_ids"], batch["positions"], batch["segments"])
        return functional.cross_entropy(
            output.logits.flatten(0, 1), batch["targets"].flatten(), ignore_index=IGNORED, reduction="sum"
        )

    def count(self, batch: Batch) -> int:
        """Return the targets inside documents."""
        return int((batch["targets"] != IGNORED).sum())

    def padding_count(self, batch: Batch) -> int:
        """Return the cells without a target."""
        return int((batch["targets"] == IGNORED).sum())
