"""A plain training script for the recipe of the kind `cifar`, as baseline; it uses only the network and the
normalisation constants of the product's trainer.

Contiguous tensors, PIL transforms per image, a loader without workers, `loss.item()` after every micro-batch.
`python -m benchmarks.plain_cifar [--train DIR] [--test DIR] [--epochs 5]` trains in two ranks on image folders,
one per class, or on synthetic images, and prints the test accuracy; `benchmarks/cifar_training.py` times its windows.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.ranks import torchrun
from trainer.contract.pixels import CHANNEL_DEVIATIONS, CHANNEL_MEANS
from trainer.kinds.cifar.data.synthetic import synthetic_images
from trainer.kinds.cifar.train.model import CifarNet

BATCH, ACCUMULATION, SEED = 50, 4, 47
TO_TENSOR = [transforms.ToTensor(), transforms.Normalize(CHANNEL_MEANS, CHANNEL_DEVIATIONS)]
TRAIN = transforms.Compose([transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), *TO_TENSOR])
PLAIN = transforms.Compose(TO_TENSOR)


class ArrayImages(Dataset[tuple[Tensor, int]]):
    """Images in memory, passed to the transforms as PIL images one by one."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image: Tensor = TRAIN(Image.fromarray(self.images[index]))
        return image, int(self.labels[index])


class PlainTraining:
    """Network, optimizer and the window loop of the plain script."""

    def __init__(self, classes: int = 10) -> None:
        torch.manual_seed(SEED)
        self.model = DistributedDataParallel(CifarNet(classes))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=1e-4)
        self.losses: list[float] = []

    def window(self, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
        """Train one accumulation window on the next micro-batches of `batches`."""
        self.optimizer.zero_grad()
        for place in range(ACCUMULATION):
            images, labels = next(batches)
            with nullcontext() if place == ACCUMULATION - 1 else self.model.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(self.model(images), labels)
                torch.autograd.backward(loss / ACCUMULATION)
            self.losses.append(loss.item())
        self.optimizer.step()


def loader(data: Dataset[Any], epoch: int = 0) -> DataLoader[Any]:
    """Return this rank's shuffled loader of one epoch, without workers."""
    sampler: DistributedSampler[Any] = DistributedSampler(data, shuffle=True, seed=SEED, drop_last=True)
    sampler.set_epoch(epoch)
    return DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=0, drop_last=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, help="default: 2,000 synthetic images")
    parser.add_argument("--test", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    if "RANK" in os.environ:
        train(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        made = (
            []
            if options.train
            else ["--train", write_pictures(folder, 1, 2000), "--test", write_pictures(folder, 2, 500)]
        )
        torchrun(__file__, *sys.argv[1:], *made)


def write_pictures(folder: str, part: int, count: int) -> str:
    """Write synthetic images, one folder per class, and return their paths."""
    root = Path(folder) / str(part)
    for number, (image, label) in enumerate(zip(*synthetic_images(SEED, part, count), strict=True)):
        (root / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / str(label) / f"{number}.png")
    return str(root)


def train(options: argparse.Namespace) -> None:
    """Train and score as one of the ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = ImageFolder(str(options.train), TRAIN)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED))
    part = Subset(data, order[: len(data) * 4 // 5].tolist())
    training = PlainTraining(len(data.classes))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(training.optimizer, options.epochs)
    began = time.perf_counter()
    for epoch in range(options.epochs):
        batches = iter(loader(part, epoch))
        for _ in range(len(loader(part, epoch)) // ACCUMULATION):
            training.window(batches)
        schedule.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: {time.perf_counter() - began:.0f} s, loss {training.losses[-1]:.3f}", flush=True)
    if options.test is not None and dist.get_rank() == 0:
        print(f"test accuracy {accuracy(training.model.module, options.test):.4f}")
    dist.barrier()
    dist.destroy_process_group()


@torch.no_grad()
def accuracy(network: nn.Module, folder: Path) -> float:
    """Return the share of correct predictions on the images of `folder`, in FP32."""
    data = ImageFolder(str(folder), PLAIN)
    network.eval()
    right = sum(
        int((network(images).argmax(dim=1) == labels).sum()) for images, labels in DataLoader(data, batch_size=200)
    )
    return right / len(data)


if __name__ == "__main__":
    main()
