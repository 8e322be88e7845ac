"""Cost of a checkpoint: `python -m benchmarks.checkpoint [--ranks 2] [--repeats 9] [--parameters 282628 8000000]`.

For every model size, with SGD momentum, on a fresh temporary folder, medians over the repeats:

- plain: `torch.save` of model, optimizer and schedule by rank 0 only, without flushing (what most scripts do);
- durable: the same, flushed to disk with fsync;
- store: the product's save, with files of every rank, digests, manifest, fsync of files and directories;
- lost: how much longer a training of `--updates` updates takes per checkpoint, saving after every fourth update.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR

from benchmarks.machine import header
from trainer.common.checkpoints.identity import Identity
from trainer.common.checkpoints.state import TrainingState
from trainer.common.checkpoints.store import CheckpointStore

EVERY = 4
WIDTH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--updates", type=int, default=24)
    parser.add_argument("--parameters", type=int, nargs="+", default=[282_628, 8_000_000])
    options = parser.parse_args()
    print(header(f"n = {options.repeats}, medians", "torch"))
    print(f"ranks: {options.ranks} (gloo, one thread each)")
    with tempfile.TemporaryDirectory(prefix="checkpoint-benchmark-") as folder:
        spawn(measure, args=(options, folder), nprocs=options.ranks)  # type: ignore[no-untyped-call]
        for line in (Path(folder) / "report.jsonl").read_text().splitlines():
            report(json.loads(line))


def report(found: dict[str, float]) -> None:
    print(f"\n{found['parameters']:,.0f} parameters, checkpoint of {found['bytes'] / 1e6:.2f} MB")
    plain = found["plain"]
    for name in ("plain", "durable", "store", "lost"):
        print(f"  {name:8} {found[name] * 1000:8.2f} ms   {found[name] / plain:5.2f} x plain")
    share = found["lost"] / (found["update"] * EVERY)
    print(f"  an update takes {found['update'] * 1000:.1f} ms; a save every {EVERY} updates costs {share:.1%}")


def measure(rank: int, options: Any, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=options.ranks)
    for parameters in options.parameters:
        bench = Bench(Path(folder) / str(parameters), parameters, rank, options.ranks)
        found = bench.run(options.repeats, options.updates)
        if rank == 0:
            with (Path(folder) / "report.jsonl").open("a") as handle:
                handle.write(json.dumps(found) + "\n")
    dist.destroy_process_group()


class Bench:
    """One model size on one rank."""

    def __init__(self, root: Path, parameters: int, rank: int, ranks: int) -> None:
        layers = max(1, round(parameters / (WIDTH * WIDTH + WIDTH)))
        torch.manual_seed(0)
        network = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
        self.model = DistributedDataParallel(network)
        optimizer = SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.state = TrainingState(model=self.model, optimizer=optimizer, scheduler=CosineAnnealingLR(optimizer, 1000))
        self.root, self.rank = root, rank
        self.root.mkdir(exist_ok=True)
        identity = Identity(kind="benchmark", config={}, data_lock="", world_size=ranks)
        self.store = CheckpointStore(root / "checkpoints", identity, keep=3)
        self.data = torch.randn(32, WIDTH)
        self.step = 0

    def run(self, repeats: int, updates: int) -> dict[str, float]:
        """Return the medians in seconds, with the sizes."""
        self.train(3, saving=False)
        saved = self.save()
        plain = statistics.median(self.timed(lambda: self.plain(flush=False)) for _ in range(repeats))
        durable = statistics.median(self.timed(lambda: self.plain(flush=True)) for _ in range(repeats))
        store = statistics.median(self.timed(self.save) for _ in range(repeats))
        # Interleaved, so that a slow minute of the machine hits both.
        pairs = [(self.train(updates, saving=False), self.train(updates, saving=True)) for _ in range(repeats)]
        without, with_saves = (statistics.median(column) for column in zip(*pairs, strict=True))
        return {
            "parameters": sum(item.numel() for item in self.model.parameters()),
            "bytes": saved,
            "plain": plain,
            "durable": durable,
            "store": store,
            "lost": (with_saves - without) / (updates // EVERY),
            "update": without / updates,
        }

    def timed(self, action: Callable[[], Any]) -> float:
        """Return the seconds until every rank is done."""
        dist.barrier()
        began = time.perf_counter()
        action()
        dist.barrier()
        return time.perf_counter() - began

    def plain(self, *, flush: bool) -> None:
        """Save as most scripts do: rank 0 only, one file."""
        if self.rank:
            return
        with (self.root / "plain.pt").open("wb") as handle:
            torch.save(self.state.shared(), handle)
            if flush:
                handle.flush()
                os.fsync(handle.fileno())

    def save(self) -> int:
        """Save like the product and return the bytes of all files."""
        return self.store.save(self.step, self.state, {"position": self.step}).bytes

    def train(self, updates: int, *, saving: bool) -> float:
        """Return the seconds that many updates take."""
        return self.timed(lambda: self._train(updates, saving=saving))

    def _train(self, updates: int, *, saving: bool) -> None:
        for index in range(1, updates + 1):
            self.state.optimizer.zero_grad()
            self.model(self.data).square().mean().backward()
            self.state.optimizer.step()
            self.step += 1
            if saving and index % EVERY == 0:
                self.save()


if __name__ == "__main__":
    main()
