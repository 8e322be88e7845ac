"""Fixture M with a loop that is wrong, or right in another spelling; and the values of every mistake as fractions."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.targets.fixture_m import RIGHT, RULES, Batch, Scaled, Table, own, padded


class PaddingInLoss(Table):
    """Padding counts in the loss and in the denominator."""

    def loss_with_padding(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.loss_sum(model, batch) + self.padding_loss_sum(model, batch)

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> float | None:
        model.zero_grad(set_to_none=True)
        total = padded(batches, ctx.all_reduce_sum(own(batches)), ctx)
        for place, batch in enumerate(batches):
            with self.quiet(model, place, len(batches)):
                # One forward pass: DDP allows only one per backward pass.
                x, u = (torch.cat([batch[key], batch[f"pad_{key}"]]) for key in "xu")
                (model(x, u).sum() * ctx.world_size / total).backward()
        return None


class LastDropped(Table):
    """The last micro-batch is counted, but its gradient is cleared away."""

    def scaled(self, loss: Tensor, batch: Batch, batches: Sequence[Batch], total: int, ctx: Any) -> Tensor:
        return loss * (0.0 if batch is batches[-1] else ctx.world_size / total)


class ClearedInside(Table):
    """zero_grad() inside the window: only the last micro-batch is left."""

    def quiet(self, model: Any, place: int, places: int) -> AbstractContextManager[None]:
        model.zero_grad(set_to_none=True)
        return super().quiet(model, place, places)


class NeverSynchronised(Table):
    """The loss comes from the module inside DDP (B2)."""

    def loss_sum(self, model: Any, batch: Batch) -> Tensor:
        return super().loss_sum(getattr(model, "module", model), batch)


class AlwaysSynchronised(Table):
    """Every micro-batch synchronises."""

    def quiet(self, model: Any, place: int, places: int) -> AbstractContextManager[None]:
        return nullcontext()


class OnlyBackwardQuiet(Table):
    """The forward pass is outside of no_sync (B1)."""

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> float | None:
        model.zero_grad(set_to_none=True)
        total = ctx.all_reduce_sum(own(batches))
        for place, batch in enumerate(batches):
            loss = self.loss_sum(model, batch) * ctx.world_size / total
            with self.quiet(model, place, len(batches)):
                loss.backward()
        return None


class FirstSynchronises(Table):
    """The first micro-batch synchronises instead of the last."""

    def quiet(self, model: Any, place: int, places: int) -> AbstractContextManager[None]:
        found: AbstractContextManager[None] = model.no_sync() if place else nullcontext()
        return found


class Stale(Table):
    """zero_grad() is forgotten: from the second window on, gradients add up."""

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> float | None:
        total = ctx.all_reduce_sum(own(batches))
        left = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
        super().accumulate(model, batches, ctx)
        for name, parameter in model.named_parameters():
            if left[name] is not None:
                parameter.grad.add_(left[name])
        assert total
        return None


class SumHook(Table):
    """A communication hook that adds up and does not divide (A14); with `divide`, one that divides by N (A7)."""

    def __init__(self, name: str, *, divide: bool) -> None:
        super().__init__(name)
        self.divide = divide

    def wrap(self, model: nn.Module, ctx: Any) -> nn.Module:
        wrapped = DistributedDataParallel(model)
        wrapped.register_comm_hook(self, add_up)
        return wrapped

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> float | None:
        self.total = ctx.all_reduce_sum(own(batches)) if self.divide else 1
        return super().accumulate(model, batches, ctx)

    def scaled(self, loss: Tensor, batch: Batch, batches: Sequence[Batch], total: int, ctx: Any) -> Tensor:
        return loss if self.divide else super().scaled(loss, batch, batches, total, ctx)


def add_up(state: SumHook, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0] / state.total)
    return future


class ScaledAfterSync(Table):
    """Sums are back-propagated, and gradients scaled after the reduction (A7)."""

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> float | None:
        super().accumulate(model, batches, ctx)
        total = ctx.all_reduce_sum(own(batches))
        for parameter in model.parameters():
            parameter.grad.mul_(ctx.world_size / total)
        return None

    def scaled(self, loss: Tensor, batch: Batch, batches: Sequence[Batch], total: int, ctx: Any) -> Tensor:
        return loss


class ReducedLoss(Table):
    """all_reduce of the loss value before backward: right value, gradient of the local term (A15)."""

    reported = 0.0

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> float | None:
        self.reported = 0.0
        super().accumulate(model, batches, ctx)
        return self.reported

    def scaled(self, loss: Tensor, batch: Batch, batches: Sequence[Batch], total: int, ctx: Any) -> Tensor:
        value = ctx.all_reduce_sum(float(loss.detach()))
        self.reported += value / total
        return (loss + (value - loss.detach())) / total


class ReportsLoss(Table):
    """The gradient is right; the loss it reports is `factor` times the objective (A6)."""

    def __init__(self, name: str, factor: float) -> None:
        super().__init__(name)
        self.factor = factor

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> float | None:
        super().accumulate(model, batches, ctx)
        with torch.no_grad():
            own_sum = sum(float(self.loss_sum(model.module, batch)) for batch in batches)
        return float(self.factor * ctx.all_reduce_sum(own_sum) / ctx.all_reduce_sum(own(batches)))


class ClippedEarly(Table):
    """Gradients are clipped after every backward pass instead of once (A11)."""

    def after(self, model: Any, *, last: bool) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)


class ClippedInside(Table):
    """Clipped after every backward pass but the last (A11); with `whole`, only after the last: no window is hurt."""

    def __init__(self, name: str, *, whole: bool) -> None:
        super().__init__(name)
        self.whole = whole

    def after(self, model: Any, *, last: bool) -> None:
        if last is self.whole:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)


class ClippedByValue(Table):
    """Every component is clipped by itself after every backward pass: no weights of micro-batches give that."""

    def after(self, model: Any, *, last: bool) -> None:
        nn.utils.clip_grad_value_(model.parameters(), 0.1)


class BucketViews(Table):
    """Gradients are views of DDP's buckets (B8)."""

    def wrap(self, model: nn.Module, ctx: Any) -> nn.Module:
        return DistributedDataParallel(model, gradient_as_bucket_view=True)


VALUES = {
    "mean_of_means": Fraction(7, 2),
    "rank_mean": Fraction(257, 99),
    "missing_world_size": Fraction(13, 10),
    "extra_world_size": Fraction(26, 5),
    "hook_sums": Fraction(26, 5),
    "extra_accumulation_division": Fraction(13, 15),
    "both_missing": Fraction(13, 30),
    "means_not_divided": Fraction(21, 2),
    "means_times_world": Fraction(21),
    "means_divided_times_world": Fraction(7),
    "microbatch_denominator": Fraction(2029, 756),
    "local_count_as_global": Fraction(26, 9),
    "last_dropped": Fraction(37, 20),
    "padding_in_denominator": Fraction(52, 37),
    "padding_in_loss": Fraction(73, 37),
}
"""Gradient of `w` under every mistake that is the same on both ranks."""
WRONG: dict[str, Table] = {
    **{name: Scaled(name, rule) for name, rule in RULES.items()},
    "hook_sums": SumHook("hook_sums", divide=False),
    "last_dropped": LastDropped("last_dropped"),
    "padding_in_loss": PaddingInLoss("padding_in_loss"),
    "never_synchronised": NeverSynchronised("never_synchronised"),
    "always_synchronised": AlwaysSynchronised("always_synchronised"),
    "only_backward_quiet": OnlyBackwardQuiet("only_backward_quiet"),
    "first_synchronises": FirstSynchronises("first_synchronises"),
    "cleared_inside": ClearedInside("cleared_inside"),
    "stale": Stale("stale"),
    "reduced_loss": ReducedLoss("reduced_loss"),
    "clipped_early": ClippedEarly("clipped_early"),
    "clipped_inside": ClippedInside("clipped_inside", whole=False),
    "clipped_at_the_end": ClippedInside("clipped_at_the_end", whole=True),
    "clipped_by_value": ClippedByValue("clipped_by_value"),
    "reports_three_times": ReportsLoss("reports_three_times", 3.0),
}
CORRECT: dict[str, Table] = {
    "correct": Table("correct"),
    **{name: Scaled(name, rule) for name, rule in RIGHT.items()},
    "scaled_after_sync": ScaledAfterSync("scaled_after_sync"),
    "hook_divides": SumHook("hook_divides", divide=True),
    "bucket_views": BucketViews("bucket_views"),
    "reports_loss": ReportsLoss("reports_loss", 1.0),
}
TARGETS = SimpleNamespace(**WRONG, **CORRECT)
