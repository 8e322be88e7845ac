"""Steps of optimizers, schedulers and scalers, with windows of language.py; `python stepping.py CASE`."""

import contextlib
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from language import IGNORED, MICRO_BATCHES, STEPS, Script, loss_of, units


def scales(*, mend: bool) -> None:
    """The scaler of rank 1 grows after every step, that of rank 0 does not: their scales differ from step 2 on."""
    script = Script()
    interval = 1 if script.rank == 1 and not mend else 100
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=interval)
    for step in range(STEPS):
        batches = script.window(step, even=True)
        script.accumulate(
            batches, lambda logits, targets, _i: scaler.scale(loss_of(logits, targets, "mean") / MICRO_BATCHES)
        )
        scaler.step(script.optimizer)
        scaler.update()
        script.optimizer.zero_grad()


def scheduled(*, inside: bool, times: int = 1) -> None:
    """A scheduler that steps after every micro-batch, or `times` after the optimizer's step."""
    script = Script()
    scheduler = torch.optim.lr_scheduler.StepLR(script.optimizer, step_size=100)
    for step in range(STEPS):
        batches = script.window(step, even=True)
        for index, one in enumerate(batches):
            with contextlib.nullcontext() if index == len(batches) - 1 else script.model.no_sync():
                (loss_of(script.model(one[0]), one[1], "mean") / MICRO_BATCHES).backward()
            if inside:
                scheduler.step()
        script.update()
        for _ in range(0 if inside else times):
            scheduler.step()


def summed(divisor: float) -> Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]:
    """Return a loss that divides sums by a number."""
    return lambda logits, targets, _index: loss_of(logits, targets, "sum") / divisor


def empty(*, skip: bool) -> None:
    """A window in which every target of every rank is ignored: the optimizer steps on zeros, or all ranks skip it."""
    script = Script()
    for step in range(STEPS):
        batches = script.window(step, even=True)
        if step == 2:
            batches = [(tokens, torch.full_like(targets, IGNORED)) for tokens, targets in batches]
        total = script.total(units(batches))
        if total or not skip:
            script.accumulate(batches, summed(max(1, total) / script.world_size))
            script.update()


CASES: dict[str, Callable[[], None]] = {
    "empty_step": lambda: empty(skip=False),
    "empty_step_mended": lambda: empty(skip=True),
    "scheduler_steps": lambda: scheduled(inside=True),
    "scheduler_steps_mended": lambda: scheduled(inside=False),
    "scheduler_steps_per_rank": lambda: scheduled(inside=False, times=2),
    "loss_scales_differ": lambda: scales(mend=False),
    "loss_scales_differ_mended": lambda: scales(mend=True),
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
    dist.destroy_process_group()
