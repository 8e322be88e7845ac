"""Evaluation that counts every sample exactly once at any number of ranks.

Ids are dealt to the ranks in turn (`share`), nothing is repeated to even them out, and nothing is averaged per rank:
ranks exchange sums and counts, and the only division is by the global count.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Reduce = Callable[[Sequence[Any]], list[Any]]
"""Local numbers -> their sums over all ranks, on every rank."""


def share(count: int, rank: int, world_size: int) -> range:
    """Return the ids of `rank`: every id below `count` belongs to exactly one rank, sizes differ by at most one.

    Raises ValueError for a rank outside 0..world_size-1.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is outside 0..{world_size - 1}")
    return range(rank, count, world_size)


def batched(ids: Sequence[int], size: int) -> Iterable[Sequence[int]]:
    """Return consecutive pieces of `ids`; the last one may be shorter."""
    return (ids[start : start + size] for start in range(0, len(ids), size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores over a whole set."""

    loss: float
    """Mean cross-entropy per sample, in nats: global sum divided by global count."""
    accuracy: float
    confusion: list[list[int]]
    """counts[true][predicted], (classes, classes); a class without samples has a row of zeros."""
    predicted: list[int]
    """Predicted class of every sample, by id; -1 where a sample was not counted exactly once."""
    repeated: list[int]
    """Ids that were counted more than once."""
    missing: list[int]
    """Ids that were never counted."""

    @property
    def total(self) -> int:
        """Samples in the confusion matrix."""
        return sum(map(sum, self.confusion))


class Tally:
    """What one rank has counted so far; the tensors stay on the device until `combined`."""

    def __init__(self, *, samples: int, classes: int, device: torch.device) -> None:
        self.classes = classes
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._confusion = torch.zeros(classes * classes, dtype=torch.int64, device=device)
        self._seen = torch.zeros(samples, dtype=torch.int64, device=device)
        self._predicted = torch.zeros(samples, dtype=torch.int64, device=device)

    def add(self, ids: Sequence[int], logits: Tensor, labels: Tensor) -> None:
        """Count samples `ids`: logits (B, classes) of any float type, labels (B,) int64."""
        places = torch.as_tensor(list(ids), dtype=torch.int64, device=labels.device)
        guesses = logits.argmax(dim=1)
        self._loss += nn.functional.cross_entropy(logits.double(), labels, reduction="sum")
        cells = labels * self.classes + guesses
        self._confusion += torch.bincount(cells, minlength=self.classes**2)
        # Ids within one batch are distinct, so plain indexing misses no repeat; repeats across batches add up.
        self._seen[places] += 1
        self._predicted[places] += guesses

    def combined(self, sum_integers: Reduce, sum_floats: Reduce) -> Evaluation:
        """Return the scores over all ranks. Raises ValueError if nothing was counted."""
        cells = sum_integers(self._confusion.tolist())
        (loss,) = sum_floats([float(self._loss)])
        seen = sum_integers(self._seen.tolist())
        predicted = sum_integers(self._predicted.tolist())
        rows = [cells[start : start + self.classes] for start in range(0, len(cells), self.classes)]
        count = sum(cells)
        if count == 0:
            raise ValueError("no sample was evaluated on any rank, so there is no mean")
        return Evaluation(
            loss=loss / count,
            accuracy=sum(rows[index][index] for index in range(self.classes)) / count,
            confusion=rows,
            predicted=[guess if times == 1 else -1 for guess, times in zip(predicted, seen, strict=True)],
            repeated=[place for place, times in enumerate(seen) if times > 1],
            missing=[place for place, times in enumerate(seen) if times == 0],
        )
