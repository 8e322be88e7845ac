"""Counts of one rank and epoch, and their reduction over all ranks."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.common.distributed import Group
from trainer.common.evaluation import Evaluation
from trainer.common.sync_counter import SyncWindow
from trainer.kinds.cifar.facts import EpochFacts

NAMED = 20
"""Maximum number of repeated ids that are listed; the rest is only counted."""


@dataclass(kw_only=True)
class EpochBooks:
    """Counts of one rank since the start of the epoch; plain numbers, so that a checkpoint can store them."""

    optimizer_steps: int = 0
    micro_batches: int = 0
    samples: int = 0
    gradient_syncs: int = 0
    reduced_bytes: int = 0
    buckets: int = 0
    communication_seconds: float = 0.0
    seconds: float = 0.0
    loss_sum: float = 0.0
    correct: int = 0

    def add_syncs(self, window: SyncWindow) -> None:
        """Add the counts of the communication hook."""
        self.gradient_syncs += window.count
        self.reduced_bytes += window.size
        self.buckets += window.buckets
        self.communication_seconds += window.seconds

    def add_window(self, *, micro_batches: int, samples: int, seconds: float) -> None:
        """Count one optimizer step."""
        self.optimizer_steps += 1
        self.micro_batches += micro_batches
        self.samples += samples
        self.seconds += seconds

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Reported:
    """Global training scores since the last report."""

    loss: float
    accuracy: float


@dataclass(kw_only=True)
class ReportSums:
    """Loss and correct predictions of one rank between two reports."""

    loss_sum: float = 0.0
    correct: int = 0
    samples: int = 0

    def share(self, group: Group) -> Reported:
        """Return the scores over all ranks: sums divided by the summed count. Collective."""
        loss, correct, samples = group.sum_floats([self.loss_sum, self.correct, self.samples], "sum of training scores")
        return Reported(loss=loss / samples, accuracy=correct / samples)


def close_epoch(
    books: EpochBooks,
    *,
    epoch: int,
    drawn: npt.NDArray[np.int64],
    train_size: int,
    validation: Evaluation,
    group: Group,
) -> EpochFacts:
    """Return what all ranks counted in `epoch` (from 1); `drawn` are this rank's ids. Collective."""
    everyone: list[dict[str, Any]] = group.gather_objects(books.as_json(), "books of the epoch")
    times_drawn = group.sum_integers(np.bincount(drawn, minlength=train_size).tolist(), "ids drawn")
    samples = sum(item["samples"] for item in everyone)
    return EpochFacts(
        epoch=epoch,
        optimizer_steps=[item["optimizer_steps"] for item in everyone],
        micro_batches=[item["micro_batches"] for item in everyone],
        samples=[item["samples"] for item in everyone],
        gradient_syncs=[item["gradient_syncs"] for item in everyone],
        repeated_ids=[number for number, times in enumerate(times_drawn) if times > 1][:NAMED],
        distinct_ids=sum(times > 0 for times in times_drawn),
        reduced_bytes=everyone[0]["reduced_bytes"],
        buckets=everyone[0]["buckets"],
        communication_seconds=everyone[0]["communication_seconds"],
        seconds=everyone[0]["seconds"],
        train_loss=sum(item["loss_sum"] for item in everyone) / samples,
        train_accuracy=sum(item["correct"] for item in everyone) / samples,
        validation_loss=validation.loss,
        validation_accuracy=validation.accuracy,
    )
