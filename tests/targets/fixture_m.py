"""Fixture M as targets: two ranks, three micro-batches, losses linear in the weights, and every mistake of its table.

`w` is the scalar of the table, so its gradient is known as a fraction. `v` gives every token its own direction,
so that micro-batches can be distinguished. Both have the same unit weights.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

Cells = Sequence[Sequence[tuple[int, float]]]
"""(tokens, gradient sum) by rank and micro-batch."""
CELLS: Cells = (((5, 10), (1, 7), (3, 6)), ((2, -4), (8, 24), (1, 9)))
PADDING: Cells = (((1, 2), (4, 5), (2, 3)), ((3, 4), (0, 0), (7, 7)))
DIRECTIONS = 40
Batch = dict[str, Tensor]


class Linear(nn.Module):
    """The loss of a token is x * w + u @ v."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))
        self.v = nn.Parameter(torch.zeros(DIRECTIONS))

    def forward(self, x: Tensor, u: Tensor) -> Tensor:
        """Map tokens (n,) and directions (n, DIRECTIONS) to losses (n,)."""
        return x * self.w + u @ self.v


class Table:
    """The right code; subclasses and arguments plant one mistake."""

    unit = "token"
    REFERENCE = Fraction(13, 5)
    """Gradient of `w`."""

    def __init__(self, name: str, cells: Cells = CELLS, padding: Cells | None = PADDING) -> None:
        self.name, self.cells, self.padding = name, cells, padding

    def build_model(self) -> nn.Module:
        return Linear()

    def window(self, step: int, rank: int, world_size: int) -> list[Batch]:
        places = range(len(self.cells[rank]))
        return [self.batch(step, rank, place) for place in places]

    def batch(self, step: int, rank: int, place: int) -> Batch:
        draw = torch.Generator().manual_seed(10_000 * step + 100 * rank + place)
        found: Batch = {}
        tables = {"": self.cells, "pad_": self.padding or [[(0, 0)] * len(row) for row in self.cells]}
        for prefix, table in tables.items():
            count, total = table[rank][place]
            found[f"{prefix}x"] = torch.full((count,), total / count if count else 0.0)
            found[f"{prefix}u"] = torch.randn(count, DIRECTIONS, generator=draw)
        return found

    def loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        total: Tensor = model(batch["x"], batch["u"]).sum()
        return total

    def padding_loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        total: Tensor = model(batch["pad_x"], batch["pad_u"]).sum()
        return total

    def count(self, batch: Batch) -> int:
        return len(batch["x"])

    def padding_count(self, batch: Batch) -> int:
        return len(batch["pad_x"])

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> float | None:
        model.zero_grad(set_to_none=True)
        total = ctx.all_reduce_sum(sum(map(self.count, batches)))
        for place, batch in enumerate(batches):
            with self.quiet(model, place, len(batches)):
                scaled: Tensor = self.scaled(self.loss_sum(model, batch), batch, batches, total, ctx)
                scaled.backward()
            self.after(model, last=place == len(batches) - 1)
        return None

    def after(self, model: Any, *, last: bool) -> None:
        """Do what this code does after each backward pass and its reduction: nothing."""

    def quiet(self, model: Any, place: int, places: int) -> AbstractContextManager[None]:
        found: AbstractContextManager[None] = model.no_sync() if place < places - 1 else nullcontext()
        return found

    def scaled(self, loss: Tensor, batch: Batch, batches: Sequence[Batch], total: int, ctx: Any) -> Tensor:
        return loss * ctx.world_size / total


Rule = Callable[[Any, Tensor, Batch, Sequence[Batch], int, Any], Tensor]


class Scaled(Table):
    """The right loop with another scale of every micro-batch's loss."""

    def __init__(self, name: str, rule: Rule, **table: Any) -> None:
        super().__init__(name, **table)
        self.rule = rule

    def scaled(self, loss: Tensor, batch: Batch, batches: Sequence[Batch], total: int, ctx: Any) -> Tensor:
        return self.rule(self, loss, batch, batches, total, ctx)


def own(batches: Sequence[Batch]) -> int:
    return sum(len(batch["x"]) for batch in batches)


def of_rank_0(batches: Sequence[Batch], ctx: Any) -> int:
    return int(ctx.all_reduce_sum(own(batches) if ctx.rank == 0 else 0))


def micro_count(batch: Batch, ctx: Any) -> int:
    return int(ctx.all_reduce_sum(len(batch["x"])))


def padded(batches: Sequence[Batch], total: int, ctx: Any) -> int:
    return total + int(ctx.all_reduce_sum(sum(len(batch["pad_x"]) for batch in batches)))


def mean(loss: Tensor, batch: Batch) -> Tensor:
    return loss / max(1, len(batch["x"]))


RULES: dict[str, Rule] = {
    "mean_of_means": lambda s, loss, b, bs, n, c: mean(loss, b) / len(bs),
    "rank_mean": lambda s, loss, b, bs, n, c: loss / own(bs),
    "missing_world_size": lambda s, loss, b, bs, n, c: loss / n,
    "extra_world_size": lambda s, loss, b, bs, n, c: loss * c.world_size**2 / n,
    "extra_accumulation_division": lambda s, loss, b, bs, n, c: loss * c.world_size / n / len(bs),
    "both_missing": lambda s, loss, b, bs, n, c: loss / n / len(bs),
    "means_not_divided": lambda s, loss, b, bs, n, c: mean(loss, b),
    "means_times_world": lambda s, loss, b, bs, n, c: mean(loss, b) * c.world_size,
    "means_divided_times_world": lambda s, loss, b, bs, n, c: mean(loss, b) * c.world_size / len(bs),
    "microbatch_denominator": lambda s, loss, b, bs, n, c: loss * c.world_size / micro_count(b, c) / len(bs),
    "local_count_as_global": lambda s, loss, b, bs, n, c: loss / of_rank_0(bs, c),
    "padding_in_denominator": lambda s, loss, b, bs, n, c: loss * c.world_size / padded(bs, n, c),
}
"""Scales of a micro-batch's loss sum; their gradients are in `tests.targets.table`."""
RIGHT: dict[str, Rule] = {
    "weighted_means": lambda s, loss, b, bs, n, c: mean(loss, b) * len(b["x"]) * c.world_size / n,
    "average_count": lambda s, loss, b, bs, n, c: mean(loss, b) * (len(b["x"]) / (n / c.world_size)),
}
