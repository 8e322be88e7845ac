"""Targets after public bug reports: batch statistics, unused and unfrozen parameters, cut windows, auxiliary losses."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.targets.fixture_m import RULES, Batch, Cells, Scaled, Table, own
from tests.targets.twins import (
    Forgotten,
    ImagesNotDivided,
    MicroMeans,
    PackedCells,
    SequencesByToken,
    ShardedMissing,
    ShardsApart,
)

TWENTY = (4, -1, 3, 3, 1, 7, 2, 2, 2, -3, 5, 1, 3, 3, 3, 3, 4, 6, 3, 1)
"""Gradients of twenty tokens with sum 52, to be cut in different ways (A9)."""


class Cut(Table):
    """The same twenty tokens of both ranks together, cut into micro-batches of these sizes (A9)."""

    def __init__(self, name: str, sizes: Sequence[Sequence[int]]) -> None:
        super().__init__(name, padding=None)
        self.sizes = sizes

    def window(self, step: int, rank: int, world_size: int) -> list[Batch]:
        draw = torch.Generator().manual_seed(step)
        x = torch.tensor(TWENTY, dtype=torch.float32)
        u = torch.randn(20, 40, generator=draw)
        sizes = [size for row in self.sizes for size in row]
        begin = sum(sum(row) for row in self.sizes[:rank])
        assert sum(sizes) == 20
        found = []
        for size in self.sizes[rank]:
            empty = {"pad_x": torch.zeros(0), "pad_u": torch.zeros(0, 40)}
            found.append({"x": x[begin : begin + size], "u": u[begin : begin + size], **empty})
            begin += size
        return found


class Shrinking(Table):
    """Windows of 4, 4 and 2 micro-batches (A10); `fixed` divides means by 4 in the last, short window too."""

    def __init__(self, name: str, *, fixed: bool) -> None:
        super().__init__(name, cells=[[(3, 4)] * 4, [(3, 5)] * 4], padding=None)
        self.fixed = fixed

    def window(self, step: int, rank: int, world_size: int) -> list[Batch]:
        return [self.batch(step, rank, place) for place in range(2 if step == 2 else 4)]

    def scaled(self, loss: Tensor, batch: Batch, batches: Sequence[Batch], total: int, ctx: Any) -> Tensor:
        return loss / len(batch["x"]) / (4 if self.fixed else len(batches))


class Normed(nn.Module):
    """A linear model behind a normalisation, optionally under activation checkpointing."""

    def __init__(self, norm: nn.Module, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.norm, self.head, self.checkpointed = norm, nn.Linear(4, 3), checkpointed

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = checkpoint(self.norm, inputs, use_reentrant=False) if self.checkpointed else self.norm(inputs)
        logits: Tensor = self.head(hidden)
        return logits


class Statistics(Table):
    """A model with a normalisation on batches of unequal size (A13, N7)."""

    def __init__(self, name: str, kind: str, *, checkpointed: bool = False, accepted: bool = False) -> None:
        super().__init__(name, padding=None)
        self.kind, self.checkpointed, self.per_batch_statistics = kind, checkpointed, accepted

    def build_model(self) -> nn.Module:
        norms: dict[str, nn.Module] = {
            "batch": nn.BatchNorm1d(4),
            "group": nn.GroupNorm(2, 4),
            "eval": nn.BatchNorm1d(4),
        }
        model = Normed(norms[self.kind], checkpointed=self.checkpointed)
        if self.kind == "eval":
            model.norm.eval()
        return model

    def window(self, step: int, rank: int, world_size: int) -> list[Batch]:
        draw = torch.Generator().manual_seed(100 * step + rank)
        return [{"x": torch.randn(size, 4, generator=draw)} for size in (3 + rank, 5)]

    def loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch["x"])
        return functional.cross_entropy(logits, torch.arange(len(logits)) % 3, reduction="sum")

    def padding_count(self, batch: Batch) -> int:
        return 0


class Plain(nn.Module):
    """One BatchNorm with one feature, under plain checkpointing or not (N7)."""

    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.norm, self.checkpointed = nn.BatchNorm1d(1), checkpointed

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.norm, inputs, use_reentrant=False) if self.checkpointed else self.norm(inputs)
        return found


class OneBatch(Statistics):
    """One batch {4, 10} with momentum 0.1 (N7)."""

    def build_model(self) -> nn.Module:
        return Plain(checkpointed=self.checkpointed)

    def window(self, step: int, rank: int, world_size: int) -> list[Batch]:
        return [{"x": torch.tensor([[4.0], [10.0]]) + rank}]

    def loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch["x"]) * torch.tensor([[1.0], [3.0]])).sum()


class TwoLayers(nn.Module):
    """Two branches; a batch says which one it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 1, bias=False), nn.Linear(8, 1, bias=False)

    def forward(self, inputs: Tensor, *, branch: int) -> Tensor:
        found: Tensor = (
            {0: self.first, 1: self.second}[branch](inputs)
            if branch < 2
            else (self.first(inputs) + self.second(inputs))
        )
        return found


class Branches(Table):
    """Every micro-batch uses one branch, so that parameters are unused (B4, B5), or a layer is unfrozen late (B3)."""

    def __init__(self, name: str, branches: Sequence[int], *, thawed: bool = False) -> None:
        super().__init__(name, padding=None)
        self.branches, self.thawed = branches, thawed

    def build_model(self) -> nn.Module:
        return TwoLayers()

    def wrap(self, model: Any, ctx: Any) -> nn.Module:
        if not self.thawed:
            return DistributedDataParallel(model, find_unused_parameters=True)
        model.first.requires_grad_(False)
        wrapped = DistributedDataParallel(model)
        model.first.requires_grad_(True)
        return wrapped

    def window(self, step: int, rank: int, world_size: int) -> list[Batch]:
        draw = torch.Generator().manual_seed(100 * step + rank)
        return [
            {"x": torch.randn(2 + rank + place, 8, generator=draw), "branch": torch.tensor(branch)}
            for place, branch in enumerate(self.branches)
        ]

    def loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        total: Tensor = model(batch["x"], branch=int(batch["branch"])).sum()
        return total

    def padding_count(self, batch: Batch) -> int:
        return 0


class Samples(Table):
    """Five samples with gradients 1 to 5 on two ranks; with `padded` the sampler repeats sample 0 (C8)."""

    def __init__(self, name: str, *, padded: bool) -> None:
        super().__init__(name, padding=None)
        self.padded = padded

    def window(self, step: int, rank: int, world_size: int) -> list[Batch]:
        ids = [[0, 2, 4], [1, 3, 0] if self.padded else [1, 3, None]][rank]
        return [self.sample(number) for number in ids]

    def sample(self, number: int | None) -> Batch:
        draw = torch.Generator().manual_seed(number or 0)
        size = 0 if number is None else 1
        x = torch.full((size,), float(number or 0) + 1)
        ids = torch.tensor([] if number is None else [number])
        return {"x": x, "u": torch.randn(1, 40, generator=draw)[:size], "ids": ids}

    def padding_count(self, batch: Batch) -> int:
        return 0

    def sample_ids(self, batch: Batch) -> list[int]:
        found: list[int] = batch["ids"].tolist()
        return found


class Auxiliary(Table):
    """An auxiliary loss with its own reduction; `lost` leaves its factor world_size or 1/k out."""

    def __init__(self, name: str, reduction: str, *, lost: bool = False) -> None:
        super().__init__(name)
        self.extra_reduction, self.lost = reduction, lost

    def extra_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inner: Any = getattr(model, "module", model)
        squares = torch.cat([batch["u"], batch["pad_u"]]).pow(2).sum(dim=0)
        return (inner.v * squares).sum() * 0.1 + inner.w.sum()

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> float | None:
        model.zero_grad(set_to_none=True)
        total = ctx.all_reduce_sum(own(batches))
        right = ctx.world_size if self.extra_reduction == "sum" else 1 / len(batches)
        for place, batch in enumerate(batches):
            with self.quiet(model, place, len(batches)):
                extra = self.extra_loss(model, batch) * (1.0 if self.lost else right)
                (self.loss_sum(model, batch) * ctx.world_size / total + extra).backward()
        return None


class Thirds(Table):
    """Windows for any number of ranks, with a rank that is empty."""

    def __init__(self, name: str, world_size: int, **options: Any) -> None:
        row = [(5, 10), (1, 7), (3, 6), (2, -4), (8, 24), (1, 9), (4, 2), (6, 5)]
        cells = [[row[(2 * rank + place) % 8] for place in range(2)] for rank in range(world_size)]
        cells[-1] = [(0, 0), (3, 8)]
        super().__init__(name, cells=SPLIT if world_size == 4 else cells, padding=None, **options)


SPLIT: Cells = [[(5, 10), (1, 7)], [(3, 6), (2, -4)], [(8, 24), (0, 0)], [(0, 0), (1, 9)]]  # fixture M on 4 ranks (A3)
EQUAL_CELLS: Cells = [[(4, 6)], [(4, -2)]]
ONE_AND_NINE: Cells = [[(1, 10)], [(9, 9)]]
EMPTY_CELL: Cells = [[(5, 10), (0, 0), (3, 6)], [(2, -4), (8, 24), (1, 9)]]
ALONE: Cells = [[(5, 10), (1, 7), (3, 6)], [(0, 0), (0, 0), (0, 0)]]


def table(name: str, cells: Cells) -> Table:
    return Table(name, cells=cells, padding=None)


def planted(name: str, rule: str, cells: Cells) -> Table:
    return Scaled(name, RULES[rule], cells=cells, padding=None)


ALL = (
    table("a1_right", ALONE),
    planted("a1_means", "mean_of_means", ALONE),
    table("a2_right", ONE_AND_NINE),
    planted("a2_wrong", "rank_mean", ONE_AND_NINE),
    Scaled("a4_right", lambda s, loss, b, bs, n, c: loss / own(bs), cells=EQUAL_CELLS, padding=None),
    Scaled("a4_wrong", lambda s, loss, b, bs, n, c: loss * 2 / own(bs), cells=EQUAL_CELLS, padding=None),
    Cut("a9_halves", [[10], [10]]),
    Cut("a9_pieces", [[5, 8], [1, 6]]),
    Cut("a9_singles", [[1] * 10, [1] * 10]),
    Shrinking("a10_right", fixed=False),
    Shrinking("a10_fixed", fixed=True),
    Statistics("a13_batch", "batch"),
    Statistics("a13_accepted", "batch", accepted=True),
    Statistics("a13_group", "group"),
    Statistics("a13_eval", "eval"),
    Branches("b3_thawed", (2, 2), thawed=True),
    Branches("b4_branches", (0, 1)),
    Branches("b5_unused", (0, 0)),
    Samples("c8_right", padded=False),
    Samples("c8_padded", padded=True),
    table("e1_empty_cell", EMPTY_CELL),
    OneBatch("n7_once", "batch", accepted=True),
    OneBatch("n7_twice", "batch", accepted=True, checkpointed=True),
    Auxiliary("extra_mean", "mean"),
    Auxiliary("extra_mean_lost", "mean", lost=True),
    Auxiliary("extra_sum", "sum"),
    Auxiliary("extra_sum_lost", "sum", lost=True),
    MicroMeans(),
    PackedCells(),
    ImagesNotDivided(),
    SequencesByToken(),
    ShardedMissing(),
    Forgotten(),
    ShardsApart(),
)
TARGETS = SimpleNamespace(**{target.name.replace("-", "_"): target for target in ALL})
WIDE = SimpleNamespace(
    **{f"wide{size}": Thirds(f"wide{size}", size) for size in (3, 4)},
    **{
        f"wide{size}_missing": type("Missing", (Thirds,), {"scaled": lambda s, loss, b, bs, n, c: loss / n})(
            f"wide{size}_missing", size
        )
        for size in (3, 4)
    },
)
