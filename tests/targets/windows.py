"""Targets after public bug reports: padded and cut windows, clipping, loss scales, buckets, and one-sided branches."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.targets.cases import Branches, Cut, Shrinking, TwoLayers, planted, table
from tests.targets.fixture_m import CELLS, RULES, Batch, Cells, Scaled, Table, mean, own


def padded_to(width: int) -> Cells:
    """Return the padding of fixture M if its only sequence per cell is padded to `width` (A8)."""
    return [[(width - count, count + 1.0) for count, _ in row] for row in CELLS]


class CutMeans(Cut):
    """Means of micro-batches: another cut of the same tokens gives another gradient (A9)."""

    def scaled(self, loss: Tensor, batch: Batch, batches: Sequence[Batch], total: int, ctx: Any) -> Tensor:
        return mean(loss, batch) / len(batches)


class Dropped(Shrinking):
    """The last, incomplete window is left out: its gradients are cleared and nothing is computed (A10)."""

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> float | None:
        if len(batches) == 4:
            return super().accumulate(model, batches, ctx)
        model.zero_grad(set_to_none=False)
        return None


class Leaking(Shrinking):
    """The incomplete window of step 1 makes no step, and its gradients stay for the next one (A10)."""

    leaked = False

    def window(self, step: int, rank: int, world_size: int) -> list[Batch]:
        return [self.batch(step, rank, place) for place in range(2 if step == 1 else 4)]

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> float | None:
        if ctx.step != 2:
            model.zero_grad(set_to_none=True)
        for place, batch in enumerate(batches):
            with self.quiet(model, place, len(batches)):
                (self.loss_sum(model, batch) / len(batch["x"]) / 4).backward()
        return None


class ByHand(Table):
    """Gradients (3, 0) and then (0, 4) on rank 0, nothing on rank 1; with `most`, clipped after every pass (A11)."""

    def __init__(self, name: str, most: float | None = None) -> None:
        super().__init__(name, padding=None)
        self.most = most

    def build_model(self) -> nn.Module:
        return nn.Linear(2, 1, bias=False)

    def window(self, step: int, rank: int, world_size: int) -> list[Batch]:
        return [{"x": torch.tensor([row]) * (1 - rank)} for row in ([3.0, 0.0], [0.0, 4.0])]

    def loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        total: Tensor = model(batch["x"]).sum()
        return total

    def count(self, batch: Batch) -> float:  # type: ignore[override]
        return 0.5 if bool(batch["x"].any()) else 0.0

    def padding_count(self, batch: Batch) -> int:
        return 0

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> float | None:
        model.zero_grad(set_to_none=True)
        for place, batch in enumerate(batches):
            model.require_backward_grad_sync = self.most is not None or place == len(batches) - 1
            (self.loss_sum(model, batch) * ctx.world_size).backward()
            if self.most is not None:
                nn.utils.clip_grad_norm_(model.parameters(), self.most)
        return None


class LossScale(Table):
    """Every loss is multiplied by a scale, and gradients divided by it after the reduction (B7)."""

    def __init__(self, name: str, scales: Sequence[float]) -> None:
        super().__init__(name)
        self.scales = scales

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> float | None:
        self.scale = self.scales[ctx.rank] if ctx.step else self.scales[0]
        super().accumulate(model, batches, ctx)
        for parameter in model.parameters():
            parameter.grad.div_(self.scale)
        return None

    def scaled(self, loss: Tensor, batch: Batch, batches: Sequence[Batch], total: int, ctx: Any) -> Tensor:
        return super().scaled(loss, batch, batches, total, ctx) * self.scale


class Rebuilt(Table):
    """In the first window, where buckets are rebuilt, what was accumulated before the last pass is lost (B8)."""

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> float | None:
        self.first = ctx.step == 0
        return super().accumulate(model, batches, ctx)

    def scaled(self, loss: Tensor, batch: Batch, batches: Sequence[Batch], total: int, ctx: Any) -> Tensor:
        if self.first and batch is batches[-1]:
            self.model.zero_grad(set_to_none=False)
        return super().scaled(loss, batch, batches, total, ctx)

    def build_model(self) -> nn.Module:
        self.model = super().build_model()
        return self.model


class LastOnly(Branches):
    """An own reduction of the parameters that the last micro-batch used: those of an earlier one are left out (B4)."""

    def wrap(self, model: Any, ctx: Any) -> nn.Module:
        found: nn.Module = model
        return found

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> float | None:
        model.zero_grad(set_to_none=True)
        total = ctx.all_reduce_sum(own(batches))
        for batch in batches:
            (self.loss_sum(model, batch) / total).backward()
        for parameter in {0: model.first, 1: model.second}[int(batches[-1]["branch"])].parameters():
            dist.all_reduce(parameter.grad)
        return None


class Thawed(Branches):
    """A layer is unfrozen before the model is wrapped, so that it is reduced (B3)."""

    def build_model(self) -> nn.Module:
        model = TwoLayers()
        model.first.requires_grad_(False)
        return model.requires_grad_(True)


class Unused(Branches):
    """A layer is never used, and the factor world_size is missing (B5)."""

    def scaled(self, loss: Tensor, batch: Batch, batches: Sequence[Batch], total: int, ctx: Any) -> Tensor:
        return loss / total


class OneSided(Branches):
    """Rank 1 has no targets for the second layer; unused parameters are looked for, so that nobody waits (E3)."""

    def window(self, step: int, rank: int, world_size: int) -> list[Batch]:
        found = super().window(step, rank, world_size)
        return [{**batch, "branch": torch.tensor(2 if rank == 0 else 0)} for batch in found]


WIDTHS = {f"a8_width{width}": padded_to(width) for width in (8, 16)}
UNEQUAL: Cells = [[(4, 6)], [(9, -2)]]
"""The windows of `a4_wrong` after its suggestion: other counts."""
ALL = (
    Scaled("a4_other_counts", lambda s, loss, b, bs, n, c: loss * 2 / own(bs), cells=UNEQUAL, padding=None),
    *(Table(name, padding=padding) for name, padding in WIDTHS.items()),
    *(Scaled(f"{name}_counted", RULES["padding_in_denominator"], padding=row) for name, row in WIDTHS.items()),
    CutMeans("a9_pieces_means", [[5, 8], [1, 6]]),
    Dropped("a10_dropped", fixed=False),
    Leaking("a10_leaks", fixed=True),
    ByHand("a11_right"),
    ByHand("a11_clips", 1.0),
    Thawed("b3_mended", (2, 2)),
    LastOnly("b4_last_only", (0, 1)),
    Unused("b5_unused_missing", (0, 0, 0)),
    LossScale("b7_same_scale", (1024.0, 1024.0)),
    LossScale("b7_scales_differ", (1024.0, 512.0)),
    Rebuilt("b8_rebuilt_loses"),
    OneSided("e3_finds_unused", (0, 0)),
    table("e1_no_rank_empty", [[(5, 10), (0, 0)], [(0, 0), (8, 24)]]),
    planted("e1_empty_missing", "missing_world_size", [[(5, 10), (0, 0), (3, 6)], [(2, -4), (8, 24), (1, 9)]]),
)
TARGETS = SimpleNamespace(**{target.name: target for target in ALL})
