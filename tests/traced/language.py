"""A small language model under DDP, trained in windows of micro-batches; `python language.py CASE` trains it that way.

As a user would write it: nothing here knows that it is traced. Targets are ignored in numbers that differ from one
micro-batch to another, so every way of normalising gives other weights.
"""

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES, STEPS, WORDS, LENGTH, SEQUENCES = 4, 4, 11, 8, 2
IGNORED = -100


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 6)
        self.head = nn.Linear(6, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


def batch(rank: int, step: int, index: int, *, even: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (tokens, targets) of one micro-batch; with `even` every micro-batch has as many targets."""
    draw = torch.Generator().manual_seed(1000 * rank + 100 * step + index)
    tokens = torch.randint(0, WORDS, (SEQUENCES, LENGTH), generator=draw)
    targets = torch.randint(0, WORDS, (SEQUENCES, LENGTH), generator=draw)
    kept = 10 if even else 3 + (5 * rank + 3 * index + step) % 11
    targets.view(-1)[kept:] = IGNORED
    return tokens, targets


def count(targets: torch.Tensor) -> int:
    return int((targets != IGNORED).sum())


def loss_of(logits: torch.Tensor, targets: torch.Tensor, reduction: str, weight: Any = None) -> torch.Tensor:
    flat = logits.view(-1, WORDS)
    return nn.functional.cross_entropy(flat, targets.view(-1), reduction=reduction, ignore_index=IGNORED, weight=weight)


class Script:
    """What every case shares."""

    def __init__(self, *, adam: bool = False) -> None:
        dist.init_process_group("gloo")
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(7)
        self.model = DistributedDataParallel(Model())
        make: Any = torch.optim.AdamW if adam else torch.optim.SGD
        self.optimizer = make(self.model.parameters(), lr=0.05)

    def total(self, number: float) -> float:
        """Return the sum over all ranks."""
        value = torch.tensor(float(number))
        dist.all_reduce(value)
        return value.item()

    def window(self, step: int, *, even: bool = False, length: int = MICRO_BATCHES) -> list[Any]:
        return [batch(self.rank, step, index, even=even) for index in range(length)]

    def accumulate(
        self,
        batches: list[Any],
        loss: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor],
        *,
        sync: Callable[[int], bool] | None = None,
    ) -> None:
        """Backward through a window; gradients are reduced with the micro-batches `sync` names, usually the last."""
        for index, (tokens, targets) in enumerate(batches):
            reduced = index == len(batches) - 1 if sync is None else sync(index)
            with contextlib.nullcontext() if reduced else self.model.no_sync():
                loss(self.model(tokens), targets, index).backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, loss_for: Callable[[list[Any]], Any], *, even: bool = False, **options: Any) -> None:
        for step in range(STEPS):
            batches = self.window(step, even=even)
            self.accumulate(batches, loss_for(batches), **options)
            self.update()


def by_sum(script: Script, divisor: Callable[[Script, list[Any], int], float]) -> Callable[[list[Any]], Any]:
    """Return a loss that divides sums by what `divisor` says."""

    def loss_for(batches: list[Any]) -> Any:
        divisors = [divisor(script, batches, index) for index in range(len(batches))]
        return lambda logits, targets, index: loss_of(logits, targets, "sum") / divisors[index]

    return loss_for


def by_mean(divisor: float, **options: Any) -> Callable[[list[Any]], Any]:
    """Return a loss that divides means by a number."""
    return lambda _batches: lambda logits, targets, _index: loss_of(logits, targets, "mean", **options) / divisor


def units(batches: list[Any]) -> int:
    return sum(count(targets) for _, targets in batches)


def global_units(script: Script, batches: list[Any], _index: int) -> float:
    return script.total(units(batches)) / script.world_size


def run_sum(factor: Callable[[Script], float], **made: Any) -> None:
    script = Script(**made)
    script.train(by_sum(script, lambda s, batches, index: global_units(s, batches, index) * factor(s)))


def weighted() -> None:
    script = Script()
    script.train(by_mean(MICRO_BATCHES, weight=torch.linspace(0.5, 2, WORDS)), even=True)


def leftover() -> None:
    """An epoch of six micro-batches in windows of four: the last two are never stepped on."""
    script = Script()
    for epoch in range(2):
        batches = script.window(epoch, even=True, length=6)
        for index, (tokens, targets) in enumerate(batches):
            last = (index + 1) % MICRO_BATCHES == 0
            with contextlib.nullcontext() if last else script.model.no_sync():
                (loss_of(script.model(tokens), targets, "mean") / MICRO_BATCHES).backward()
            if last:
                script.update()


def short(divisor: Callable[[list[Any]], int]) -> None:
    """Epochs of six micro-batches: a window of four and one of two."""
    script = Script()
    for epoch in range(3):
        batches = script.window(epoch, even=True, length=6)
        for window in (batches[:MICRO_BATCHES], batches[MICRO_BATCHES:]):
            script.accumulate(window, by_mean(divisor(window))(window))
            script.update()


def dropped(*, mend: bool) -> None:
    """Gradients are cleared after the second micro-batch."""
    script = Script()
    for step in range(STEPS):
        batches = script.window(step, even=True)
        for index, (tokens, targets) in enumerate(batches):
            if index == 2 and not mend:
                script.optimizer.zero_grad()
            with contextlib.nullcontext() if index == MICRO_BATCHES - 1 else script.model.no_sync():
                (loss_of(script.model(tokens), targets, "mean") / MICRO_BATCHES).backward()
        script.update()


def scaled(*, unscale_first: bool) -> None:
    """Clip with a GradScaler."""
    script = Script()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(STEPS):
        batches = script.window(step, even=True)
        script.accumulate(
            batches, lambda logits, targets, _i: scaler.scale(loss_of(logits, targets, "mean") / MICRO_BATCHES)
        )
        if unscale_first:
            scaler.unscale_(script.optimizer)
        nn.utils.clip_grad_norm_(script.model.parameters(), 1.0)
        scaler.step(script.optimizer)
        scaler.update()
        script.optimizer.zero_grad()


def cleared_by_hand() -> None:
    """The script throws gradients away in the middle of a window, parameter by parameter."""
    script = Script()
    for step in range(STEPS):
        for index, (tokens, targets) in enumerate(script.window(step, even=True)):
            if index == 1:
                for parameter in script.model.parameters():
                    parameter.grad = None
            with contextlib.nullcontext() if index == MICRO_BATCHES - 1 else script.model.no_sync():
                (loss_of(script.model(tokens), targets, "mean") / MICRO_BATCHES).backward()
        script.update()


def uneven() -> None:
    """Means of full batches, and of a smaller one at the end of every epoch."""
    script = Script()
    for epoch in range(3):
        batches = script.window(epoch, even=True, length=2 * MICRO_BATCHES)
        tokens, targets = batches[-1]
        batches[-1] = tokens[:1], targets[:1]
        for window in (batches[:MICRO_BATCHES], batches[MICRO_BATCHES:]):
            script.accumulate(window, by_mean(MICRO_BATCHES)(window))
            script.update()


def odd_factors() -> None:
    """Every micro-batch has a factor that belongs to no known mistake."""
    factors = [0.31, 0.17, 0.42, 0.1]
    Script().train(lambda _b: lambda logits, targets, i: loss_of(logits, targets, "mean") * factors[i], even=True)


def compiled() -> None:
    """The loss is inside a compiled region."""
    script = Script()
    loss = torch.compile(lambda logits, targets: loss_of(logits, targets, "mean") / MICRO_BATCHES, backend="aot_eager")
    script.train(lambda _b: lambda logits, targets, _i: loss(logits, targets), even=True)


def skipped() -> None:
    """An overflow on one rank after the reduction: its scaler leaves the step out, the other's does not."""
    script = Script()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(STEPS):
        batches = script.window(step, even=True)
        script.accumulate(
            batches, lambda logits, targets, _i: scaler.scale(loss_of(logits, targets, "mean") / MICRO_BATCHES)
        )
        if script.rank == 1 and step == 2:
            script.model.module.head.bias.grad[0] = torch.inf
        scaler.step(script.optimizer)
        scaler.update()
        script.optimizer.zero_grad()


CASES: dict[str, Callable[[], None]] = {
    "right_sum": lambda: run_sum(lambda _s: 1.0),
    "right_mean": lambda: Script().train(by_mean(MICRO_BATCHES), even=True),
    "mean_of_means": lambda: Script().train(by_mean(MICRO_BATCHES)),
    "rank_mean": lambda: (s := Script()).train(by_sum(s, lambda _s, batches, _i: float(units(batches)))),
    "microbatch_denominator": lambda: (s := Script()).train(
        by_sum(s, lambda s, batches, i: s.total(count(batches[i][1])) / s.world_size * len(batches))
    ),
    "missing_world_size": lambda: run_sum(lambda s: s.world_size),
    "missing_world_size_adam": lambda: run_sum(lambda s: s.world_size, adam=True),
    "extra_world_size": lambda: run_sum(lambda s: 1 / s.world_size),
    "extra_accumulation_division": lambda: run_sum(lambda _s: MICRO_BATCHES),
    "missing_accumulation_division": lambda: Script().train(by_mean(1), even=True),
    "class_weights": weighted,
    "extra_syncs": lambda: Script().train(by_mean(MICRO_BATCHES), even=True, sync=lambda _i: True),
    "sync_on_wrong_microbatch": lambda: Script().train(by_mean(MICRO_BATCHES), even=True, sync=lambda i: i == 0),
    "unsynchronised_step": lambda: Script().train(by_mean(MICRO_BATCHES), even=True, sync=lambda _i: False),
    "leftover_microbatches": leftover,
    "short_last_window": lambda: short(lambda _w: MICRO_BATCHES),
    "short_last_window_mended": lambda: short(len),
    "dropped_microbatch": lambda: dropped(mend=False),
    "dropped_microbatch_mended": lambda: dropped(mend=True),
    "clipped_before_unscale": lambda: scaled(unscale_first=False),
    "clipped_before_unscale_mended": lambda: scaled(unscale_first=True),
    "cleared_by_hand": cleared_by_hand,
    "uneven_last_batch": uneven,
    "unexplained": odd_factors,
    "compiled": compiled,
    "skipped_on_one_rank": skipped,
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
    dist.destroy_process_group()
