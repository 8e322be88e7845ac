"""A short training with and without the counting hook, on real ranks: `tests.support.hook_lab:run`."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.common.checkpoints.digest import digest
from trainer.common.context import StageContext
from trainer.common.distributed import Group, process_group
from trainer.common.sync_counter import SyncCounter
from trainer.contract.files import write_json_atomically

STEPS = 8


class DividingCounter(SyncCounter):
    """A broken twin: divides by the number of ranks, where DDP multiplies by its inverse."""

    def average(self, buffer: torch.Tensor, world_size: int) -> None:
        """Divide."""
        buffer.div_(world_size)


def run(context: StageContext) -> None:
    """Train in each way and write the digest of this rank's final weights."""
    with process_group(context) as group:
        ways: dict[str, Callable[[], SyncCounter] | None] = {
            "plain": None,
            "hook": lambda: SyncCounter(group.telemetry),
            "dividing": lambda: DividingCounter(group.telemetry),
        }
        found = {
            f"{name}, {dtype}": train(group, make, getattr(torch, dtype))
            for name, make in ways.items()
            for dtype in ("float32", "float64")
        }
        write_json_atomically(context.paths.work / f"bits-rank{group.rank}.json", found, within=context.paths.root)


def train(group: Group, make: Callable[[], SyncCounter] | None, dtype: torch.dtype) -> str:
    """Return the digest of the weights after a few steps on this rank's data."""
    torch.manual_seed(11)
    layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(24, 24, dtype=dtype), nn.Tanh())))
    model = DistributedDataParallel(layers, bucket_cap_mb=0.004)
    if make is not None:
        make().attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + group.rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 24, dtype=dtype, generator=generator)).square().mean().backward()
        optimizer.step()
    return digest(dict(layers.state_dict()))
