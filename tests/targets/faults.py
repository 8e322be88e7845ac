"""Targets that break a rule: each in one member, most of them on rank 1 only."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.targets.fixture_m import Batch, Table


class Odd(Table):
    """A right target, except for one member that is replaced."""

    def __init__(self, name: str, **members: Callable[..., Any]) -> None:
        super().__init__(name)
        for member, code in members.items():
            setattr(self, member, code)


def rank() -> int:
    return dist.get_rank()


def fail(text: str) -> Any:
    raise ValueError(text)


def infinite(batch: Batch) -> float:
    """Return infinity for one micro-batch of rank 1: its loss of 0 becomes NaN."""
    return float("inf") if len(batch["x"]) == 8 else 1.0


class Other(nn.Module):
    """A model whose parameters depend on the rank."""

    def __init__(self, *, swapped: bool = False, size: int = 40) -> None:
        super().__init__()
        if swapped:
            self.v = nn.Parameter(torch.zeros(size))
        self.w = nn.Parameter(torch.zeros(1))
        if not swapped:
            self.v = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor, u: Tensor) -> Tensor:
        found: Tensor = x * self.w + u @ self.v
        return found


class Touching(Table):
    """window() moves a parameter of the model."""

    def build_model(self) -> nn.Module:
        self.model = super().build_model()
        return self.model

    def window(self, step: int, rank: int, world_size: int) -> list[Batch]:
        if rank:
            self.model.w.data.add_(1)  # type: ignore[operator]
        return super().window(step, rank, world_size)


class Drawing(Table):
    """window() draws from the global generator."""

    def window(self, step: int, rank: int, world_size: int) -> list[Batch]:
        return [{**batch, "u": torch.randn_like(batch["u"])} for batch in super().window(step, rank, world_size)]


class Dropping(nn.Module):
    """The linear model with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = Other(), nn.Dropout(0.5)

    def forward(self, x: Tensor, u: Tensor) -> Tensor:
        found: Tensor = self.drop(self.inner(x, u) + u[:, 0])
        return found


class Stepping(Table):
    """accumulate() continues to optimizer.step()."""

    def accumulate(self, model: Any, batches: Any, ctx: Any) -> None:
        super().accumulate(model, batches, ctx)
        torch.optim.SGD(model.parameters(), lr=0.1).step()


class Leaving(Table):
    """accumulate() takes the process group down."""

    def accumulate(self, model: Any, batches: Any, ctx: Any) -> None:
        super().accumulate(model, batches, ctx)
        dist.barrier()
        dist.destroy_process_group()


class Renaming(Table):
    """wrap() adds a parameter to the model."""

    def wrap(self, model: nn.Module, ctx: Any) -> nn.Module:
        model.register_parameter("more", nn.Parameter(torch.zeros(1)))
        return DistributedDataParallel(model, find_unused_parameters=True)


class OneSided(Table):
    """Rank 1 has no targets for the parameter `w`, and DDP is not asked to look for unused ones (E3)."""

    def build_model(self) -> nn.Module:
        return Branching()


class Branching(nn.Module):
    """A model that leaves `w` out of the graph on rank 1."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(40))

    def forward(self, x: Tensor, u: Tensor) -> Tensor:
        found: Tensor = u @ self.v if dist.is_initialized() and dist.get_rank() else x * self.w + u @ self.v
        return found


class NotANumber(Table):
    """accumulate() leaves NaN in one component on rank 1."""

    def accumulate(self, model: Any, batches: Any, ctx: Any) -> None:
        super().accumulate(model, batches, ctx)
        if ctx.rank:
            model.module.v.grad[3] = float("nan")


RIGHT = Table("right")
ALL = (
    Odd("build_raises", build_model=lambda: fail("no such file: weights.pt") if rank() else RIGHT.build_model()),
    Odd("build_returns_list", build_model=list),
    Odd("names_differ", build_model=lambda: Other(swapped=rank() == 1)),
    Odd("shapes_differ", build_model=lambda: Other(size=40 + rank())),
    Odd("window_raises", window=lambda step, r, w: fail("shard 1 is missing") if r else RIGHT.window(step, r, w)),
    Odd("window_is_dict", window=lambda step, r, w: {"x": 1}),
    Odd("window_is_empty", window=lambda step, r, w: [] if r else RIGHT.window(step, r, w)),
    Odd("passes_differ", window=lambda step, r, w: RIGHT.window(step, r, w)[r:]),
    Touching("window_moves_model"),
    Odd("count_negative", count=lambda batch: -1 if rank() else 3),
    Odd("count_text", count=lambda batch: "three"),
    Odd("count_nan", count=lambda batch: float("nan")),
    Odd("count_zero", count=lambda batch: 0),
    Odd("ids_number", sample_ids=lambda batch: 7),
    Odd("loss_vector", loss_sum=lambda model, batch: model(batch["x"], batch["u"])),
    Odd("loss_float", loss_sum=lambda model, batch: 1.0),
    Odd("loss_detached", loss_sum=lambda model, batch: RIGHT.loss_sum(model, batch).detach()),
    Odd(
        "loss_nan", loss_sum=lambda model, batch: RIGHT.loss_sum(model, batch) / (0 if len(batch["x"]) == 8 else 1) * 0
    ),
    Odd("loss_random", build_model=Dropping),
    Drawing("window_random"),
    Odd("groups_nonsense", param_groups=lambda model: [{"lr": 0.1}]),
    Odd("wrap_nothing", wrap=lambda model, ctx: None),
    Renaming("wrap_adds"),
    Odd(
        "accumulate_raises", accumulate=lambda m, b, ctx: fail("scaler is None") if ctx.rank else ctx.all_reduce_sum(1)
    ),
    Odd("accumulate_text", accumulate=lambda model, batches, ctx: "done"),
    Stepping("accumulate_steps"),
    Leaving("accumulate_leaves"),
    OneSided("one_sided_branch"),
)
TARGETS = SimpleNamespace(**{target.name: target for target in ALL}, nan_gradient=NotANumber("nan_gradient"))
