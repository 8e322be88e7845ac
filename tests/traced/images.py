"""A small convolutional network with BatchNorm and a DataLoader per rank; `python images.py CASE` trains it so."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Subset

EPOCHS, PICTURES, CLASSES, BATCH = 3, 32, 4, 4


class Pictures(Dataset[Any]):
    def __init__(self, length: int = PICTURES) -> None:
        draw = torch.Generator().manual_seed(5)
        self.pictures = torch.randn(length, 3, 8, 8, generator=draw)
        self.labels = torch.randint(0, CLASSES, (length,), generator=draw)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return self.pictures[index], self.labels[index]


class Stream(IterableDataset[Any]):
    """Pictures without numbers."""

    def __iter__(self) -> Iterator[Any]:
        pictures = Pictures()
        for index in range(dist.get_rank(), PICTURES, dist.get_world_size()):
            yield pictures[index]


class Block(nn.Module):
    def __init__(self, *, recompute: bool, dropout: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), *([nn.Dropout(0.5)] if dropout else []), nn.Linear(4 * 36, CLASSES))
        self.recompute = recompute

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        hidden = (
            checkpoint(self.body, pictures.requires_grad_(), use_reentrant=False)
            if self.recompute
            else self.body(pictures)
        )
        return self.head(hidden)


class Gaps(DistributedSampler[Any]):
    """A sampler that forgets every fifth sample."""

    def __iter__(self) -> Iterator[int]:
        return iter([index for index in super().__iter__() if index % 5])

    def __len__(self) -> int:
        return len(list(iter(self)))


def train(
    *,
    data: Any = None,
    sampler: str = "distributed",
    set_epoch: bool = True,
    evaluate: bool = False,
    recompute: bool = False,
    dropout: bool = False,
    seed: Callable[[int], int] = lambda rank: 11 + rank,
    same_weights: bool = True,
    steps_skipped: Callable[[int], int] = lambda _rank: 0,
    forwards_of: Callable[[int], int] = lambda _rank: 1,
    workers: int = 0,
    persistent: bool = False,
) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3 if same_weights else 3 + rank)
    model = DistributedDataParallel(Block(recompute=recompute, dropout=dropout), broadcast_buffers=False)
    torch.manual_seed(seed(rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pictures = data or Pictures()
    made: Any = {"distributed": DistributedSampler, "gaps": Gaps}.get(sampler)
    distributed: Any = made(pictures, shuffle=made is DistributedSampler) if made else None
    loader = DataLoader(
        pictures,
        batch_size=BATCH,
        sampler=distributed,
        shuffle=sampler == "shuffle",
        num_workers=workers,
        persistent_workers=persistent,
    )
    for epoch in range(EPOCHS):
        if distributed is not None and set_epoch:
            distributed.set_epoch(epoch)
        for step, (batch, labels) in enumerate(loader):
            optimizer.zero_grad()
            for _ in range(forwards_of(rank)):
                output = model(batch)
            nn.functional.cross_entropy(output, labels).backward()
            if step >= steps_skipped(rank) or epoch < EPOCHS - 1:
                optimizer.step()
    if evaluate:
        _evaluate(model.module, pictures)


def _evaluate(model: nn.Module, pictures: Any) -> None:
    model.eval()
    right = torch.zeros(())
    with torch.no_grad():
        for batch, labels in DataLoader(
            pictures, batch_size=BATCH, sampler=DistributedSampler(pictures, shuffle=False)
        ):
            right += (model(batch).argmax(1) == labels).sum()
    dist.all_reduce(right)


CASES: dict[str, Callable[[], None]] = {
    "right": lambda: train(evaluate=True),
    "right_workers": lambda: train(workers=1),
    "right_persistent_workers": lambda: train(workers=2, persistent=True),
    "iterable": lambda: train(data=Stream(), sampler="none"),
    "buffers_moved_twice": lambda: train(recompute=True),
    "same_data_on_all_ranks": lambda: train(sampler="shuffle", seed=lambda _rank: 11),
    "same_order_every_epoch": lambda: train(set_epoch=False),
    "sharded_twice": lambda: train(data=Subset(Pictures(), list(range(PICTURES))[_rank() :: 2])),
    "repeated_samples": lambda: train(data=Pictures(PICTURES - 3)),
    "padded_evaluation": lambda: train(data=Pictures(PICTURES - 3), evaluate=True),
    "missing_samples": lambda: train(sampler="gaps", data=Pictures(30)),
    "unequal_steps": lambda: train(steps_skipped=lambda rank: 2 * rank),
    "unequal_forwards": lambda: train(forwards_of=lambda rank: 1 + rank),
    "same_random_stream": lambda: train(dropout=True, seed=lambda _rank: 11),
    "different_random_streams": lambda: train(dropout=True),
    "different_initial_weights": lambda: train(same_weights=False),
}


def _rank() -> int:
    import os

    return int(os.environ["RANK"])


if __name__ == "__main__":
    CASES[sys.argv[1]]()
    dist.destroy_process_group()
