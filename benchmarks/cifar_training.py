"""Training throughput of the kind `cifar` in BF16 on the CPU, compared with the plain script.

Run: `[BENCHMARK_RANKS=1] python -m benchmarks.cifar_training [--pairs N]`
Both run in the same two ranks, alternating per accumulation window (4 micro-batches of 50 images per rank), and only
neighbouring windows are compared. Goal: at least 1.8 times the plain script.
"""

import argparse
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.plain_cifar import ACCUMULATION, BATCH, ArrayImages, PlainTraining, loader
from benchmarks.ranks import IMAGES, RANKS, header, launch, median_ratio, paired, training_of
from trainer.common.context import StageContext
from trainer.common.distributed import Group
from trainer.kinds.cifar.data.draws import EpochPlan
from trainer.kinds.cifar.data.split import PreparedData

GOAL = 1.8


def run_rank(group: Group, context: StageContext) -> None:
    """Time both trainings on this rank."""
    pairs = _options().pairs
    images, labels = PreparedData(context.paths).read("train")
    plain = PlainTraining()
    endless = _endless(ArrayImages(np.array(images), labels))
    ours = training_of(group, context)
    ours.witness = None  # its sampled windows are a cost of the audit, measured by telemetry_overhead.py
    plan = EpochPlan(train_size=IMAGES, rank=group.rank, world_size=RANKS, seed=47)
    windows = itertools.cycle(plan.ids(0).reshape(-1, ACCUMULATION, BATCH))
    times = paired(lambda: plain.window(endless), lambda: ours.window(0, next(windows)), pairs)
    if group.rank == 0:
        count = RANKS * ACCUMULATION * BATCH
        rates = [sorted(count / pair[side] for pair in times)[pairs // 2] for side in (0, 1)]
        ratio = median_ratio(times)
        print(header("training throughput, BF16 on CPU, no_sync", pairs))
        print(f"plain script   {rates[0]:8.0f} images/s")
        print(f"this product   {rates[1]:8.0f} images/s")
        print(f"ratio          {ratio:8.2f} (goal {GOAL}: {'reached' if ratio >= GOAL else 'MISSED'})")


def _endless(data: ArrayImages) -> Iterator[Any]:
    for epoch in itertools.count():
        yield from loader(data, epoch)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    _options()
    launch(__file__, run_rank)
