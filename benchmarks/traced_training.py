"""One rank of a training as a user would write it: `traced_training MODEL MICRO_BATCHES`; started by `tracing.py`.

Reads a number of updates and `on` or `off` per line, trains that many with the pieces of a probe on or off, and answers
with a line of JSON: `seconds`, `processor` (seconds of processor time), `probe` (seconds the probe says it took, 0
untraced) and `resident` (bytes of memory).
"""

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WORDS, LENGTH, WIDTH = 4000, 64, 256
SAMPLES = 4096
GUARDS: list[Any] = []


class Transformer(nn.Module):
    """A decoder over words: 5 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True)
        self.embed, self.layers = nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return scores, one row a word."""
        scores: torch.Tensor = self.head(self.layers(self.embed(words)))
        return scores.flatten(0, 1)


def _images() -> nn.Module:
    blocks: list[nn.Module] = []
    for before, after in ((3, 64), (64, 128), (128, 128), (128, 256)):
        blocks += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(1024, 10))


def _training(name: str) -> tuple[nn.Module, TensorDataset, int]:
    """Return model, data set and size of a micro-batch."""
    if name == "transformer":
        words = torch.randint(0, WORDS, (SAMPLES, LENGTH))
        return Transformer(), TensorDataset(words, words.roll(-1, 1)), 4
    if name == "images":
        return _images(), TensorDataset(torch.randn(SAMPLES, 3, 32, 32), torch.randint(0, 10, (SAMPLES,))), 32
    return nn.Linear(4, 4), TensorDataset(torch.randn(SAMPLES, 4), torch.randint(0, 4, (SAMPLES,))), 8


def _batches(loader: "DataLoader[Any]", sampler: "DistributedSampler[Any]") -> Iterator[Any]:
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def _probe_seconds() -> float:
    """Return the probe's own count of its time, 0 where there is none."""
    return float(sum(guard.seconds for guard in GUARDS))


def _guards() -> list[Any]:
    """Return what counts the time of a probe in this process; nothing else has a way to it."""
    return [item for item in gc.get_objects() if type(item).__module__ == "ddp_audit_probe.guard"]


class _Everything(dict[str, str]):
    """Has every name, so that a probe takes each of its pieces for switched off."""

    def __contains__(self, name: object) -> bool:
        return True


def _switch(*, on: bool) -> None:
    """Switch the pieces of the probe on or off; its hooks remain, and its record of this training is of no use."""
    for guard in GUARDS:
        guard.off = {} if on else _Everything()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Train with the given options."""
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    torch.set_num_threads(1)
    module, data, size = _training(sys.argv[1])
    micro_batches = int(sys.argv[2])
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    batches = _batches(DataLoader(data, batch_size=size, sampler=sampler), sampler)
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    GUARDS.extend(_guards())
    for line in sys.stdin:
        updates, probe = line.split()
        _switch(on=probe == "on")
        dist.barrier()
        began, busy, probe = time.perf_counter(), time.process_time(), _probe_seconds()
        for _ in range(int(updates)):
            for index in range(micro_batches):
                inputs, targets = next(batches)
                with contextlib.nullcontext() if index == micro_batches - 1 else model.no_sync():
                    loss: Any = nn.functional.cross_entropy(model(inputs), targets.flatten())
                    (loss / micro_batches).backward()
            optimizer.step()
            optimizer.zero_grad()
        answer = {
            "seconds": time.perf_counter() - began,
            "processor": time.process_time() - busy,
            "probe": _probe_seconds() - probe,
            "resident": _resident(),
        }
        print(json.dumps(answer), flush=True)
    dist.destroy_process_group()


main()
