"""Ranks that should agree and do not; `python agreement.py CASE`. Model and windows are those of language.py."""

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from language import LENGTH, MICRO_BATCHES, SEQUENCES, STEPS, Model, Script, batch, by_mean, loss_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def unreduced(*, mend: bool) -> None:
    """A second module is trained next to the wrapped one."""
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    beside: Any = nn.Linear(6, 6)
    model = DistributedDataParallel(Model())
    if mend:
        beside = DistributedDataParallel(beside)
    optimizer = torch.optim.SGD([*model.parameters(), *beside.parameters()], lr=0.05)
    for step in range(STEPS):
        tokens, targets = batch(dist.get_rank(), step, 0, even=True)
        hidden = beside(model.module.embed(tokens)) if not mend else beside(torch.ones(SEQUENCES, LENGTH, 6))
        loss = loss_of(model(tokens), targets, "mean") + 0.01 * hidden.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def differing(*, mend: bool) -> None:
    """Rank 1 changes a parameter after DDP has made all alike."""
    script = Script()
    if script.rank == 1 and not mend:
        with torch.no_grad():
            script.model.module.head.bias.add_(0.5)
    script.train(by_mean(MICRO_BATCHES), even=True)


def manual(*, mend: bool) -> None:
    """Gradients are changed after their reduction, on one rank."""
    script = Script()
    for step in range(STEPS):
        batches = script.window(step, even=True)
        script.accumulate(batches, by_mean(MICRO_BATCHES)(batches))
        if script.rank == 1 and not mend:
            script.model.module.head.bias.grad.mul_(2)
        script.update()


def saves(*, mend: bool) -> None:
    """Checkpoints after training: by every rank, or by rank 0 alone."""
    script = Script()
    script.train(by_mean(MICRO_BATCHES), even=True)
    if script.rank == 0 or not mend:
        torch.save(script.model.state_dict(), os.environ.get("OUT", os.devnull))


CASES: dict[str, Callable[[], None]] = {
    "unreduced_parameters": lambda: unreduced(mend=False),
    "unreduced_parameters_mended": lambda: unreduced(mend=True),
    "parameters_differ": lambda: differing(mend=False),
    "parameters_differ_mended": lambda: differing(mend=True),
    "gradients_differ": lambda: manual(mend=False),
    "gradients_differ_mended": lambda: manual(mend=True),
    "same_file_written": lambda: saves(mend=False),
    "same_file_written_mended": lambda: saves(mend=True),
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
    dist.destroy_process_group()
