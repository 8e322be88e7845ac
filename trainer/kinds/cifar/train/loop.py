"""The training loop of one mode on one rank: windows, counts by hook and profiler, epochs, checkpoints."""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from trainer.common.checkpoints.state import TrainingState
from trainer.common.continuation import Continuation
from trainer.common.distributed import Group
from trainer.common.sync_counter import SyncCounter
from trainer.common.witness import ProfilerWitness, is_sampled
from trainer.kinds.cifar.data.draws import DrawLog, EpochPlan
from trainer.kinds.cifar.data.images import ImageSplit, Views, cropped, normalised
from trainer.kinds.cifar.facts import EpochFacts, SampledWindow
from trainer.kinds.cifar.params import CifarParams
from trainer.kinds.cifar.train.epoch import EpochBooks, ReportSums, close_epoch
from trainer.kinds.cifar.train.scoring import score
from trainer.kinds.cifar.train.window_step import Batch, WindowStep

REPORTS_PER_EPOCH = 25


@dataclass(kw_only=True)
class Training:
    """One rank's training; `run` continues to the end or to the step at which all ranks stop."""

    params: CifarParams
    group: Group
    classes: int
    step: WindowStep
    counter: SyncCounter
    witness: ProfilerWitness | None
    """Only on rank 0."""
    scheduler: CosineAnnealingLR
    train: ImageSplit
    validation: ImageSplit
    generator: torch.Generator
    """Crops and flips of this rank."""
    draws: DrawLog = field(default_factory=DrawLog)
    epochs: list[EpochFacts] = field(default_factory=list)
    windows: list[SampledWindow] = field(default_factory=list)
    books: EpochBooks = field(default_factory=EpochBooks)
    recent: ReportSums = field(default_factory=ReportSums)
    done: int = 0
    """Optimizer steps since the run began."""

    def __post_init__(self) -> None:
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self.group.device)
        self._correct = torch.zeros((), dtype=torch.int64, device=self.group.device)

    @property
    def state(self) -> TrainingState:
        """Objects that a checkpoint restores in place."""
        return TrainingState(
            model=self.step.model,
            optimizer=self.step.optimizer,
            scheduler=self.scheduler,
            updates_in=lambda sampler: int(sampler["done"]),
        )

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.params.epochs * self.params.steps_per_epoch

    def run(self, continuation: Continuation) -> bool:
        """Train from step `done` on; return False if the ranks stopped early because one was preempted."""
        plan = EpochPlan(
            train_size=self.params.train_size,
            rank=self.group.rank,
            world_size=self.group.world_size,
            seed=self.params.seed,
        )
        self.group.telemetry.phase("train", self.done)
        while self.done < self.total_steps:
            epoch, place = divmod(self.done, self.params.steps_per_epoch)
            ids = plan.ids(epoch)
            windows = ids.reshape(-1, self.params.accum_steps, self.params.batch_size)
            for window in windows[place:]:
                self.window(epoch, window)
                ends = self.done % self.params.steps_per_epoch == 0
                if ends:
                    self._end_epoch(epoch, ids[: self.books.samples])
                if continuation.after_update(self.done, self.sampler_state, due=ends):
                    return False
        return True

    def sampler_state(self) -> dict[str, Any]:
        """Return this rank's position and counts, for a checkpoint."""
        self._settle()
        return {
            "done": self.done,
            "generator": self.generator.get_state(),
            "draws": self.draws.as_json(),
            "epochs": [item.model_dump(mode="json") for item in self.epochs],
            "windows": [item.model_dump(mode="json") for item in self.windows],
            "books": self.books.as_json(),
        }

    def restore(self, sampler: Mapping[str, Any]) -> None:
        """Restore the state returned by `sampler_state`; model, optimizer and schedule are restored elsewhere."""
        self.done = int(sampler["done"])
        self.generator.set_state(sampler["generator"])
        self.draws = DrawLog(**sampler["draws"])
        self.epochs = [EpochFacts.model_validate(item) for item in sampler["epochs"]]
        self.windows = [SampledWindow.model_validate(item) for item in sampler["windows"]]
        self.books = EpochBooks(**sampler["books"])

    def window(self, epoch: int, ids: npt.NDArray[np.int64]) -> None:
        """Train one accumulation window on `ids` (micro-batches, batch) and update the counts."""
        sampled = is_sampled(self.done, self.params.steps_per_epoch)
        began = time.perf_counter()
        batches = [self._batch(part) for part in ids]
        with self.witness.window(self.done) if self.witness is not None and sampled else nullcontext():
            loss_sum, correct = self.step.run(batches)
        self._loss_sum += loss_sum
        self._correct += correct
        self.recent.samples += ids.size
        self.books.add_window(micro_batches=len(ids), samples=ids.size, seconds=time.perf_counter() - began)
        self.done += 1
        self.group.telemetry.mark("step", self.done)
        due = self.done % max(1, self.params.steps_per_epoch // REPORTS_PER_EPOCH) == 0
        due = due or self.done % self.params.steps_per_epoch == 0
        # Reading a count synchronises with the GPU, so it is read there only when a number is needed anyway.
        if due or sampled or self.group.device.type == "cpu" or is_sampled(self.done, self.params.steps_per_epoch):
            self._count(epoch, sampled=sampled)
        if due:
            self._report()

    def _batch(self, ids: npt.NDArray[np.int64]) -> Batch:
        images, labels = self.train.raw(ids)
        views = Views.draw(len(ids), self.generator)
        self.draws.add(ids, views.as_bytes())
        return normalised(cropped(images, views)), labels

    def _count(self, epoch: int, *, sampled: bool) -> None:
        counted = self.counter.take()
        self.books.add_syncs(counted)
        self.group.telemetry.sync(self.done, counted.count, counted.size)
        if self.witness is not None and sampled:
            evidence = self.witness.windows[-1]
            self.windows.append(SampledWindow(epoch=epoch + 1, hook_count=counted.count, evidence=evidence))

    def _settle(self) -> None:
        """Transfer the scores from the device to the counts."""
        loss_sum, correct = float(self._loss_sum), int(self._correct)
        for sums in (self.books, self.recent):
            sums.loss_sum += loss_sum
            sums.correct += correct
        self._loss_sum.zero_()
        self._correct.zero_()

    def _report(self) -> None:
        self._settle()
        scores = self.recent.share(self.group)
        self.recent = ReportSums()
        if self.group.rank == 0:
            telemetry = self.group.telemetry
            rate = self.step.optimizer.param_groups[0]["lr"]
            telemetry.progress(self.done, self.total_steps, "steps")
            telemetry.metrics(
                self.done,
                {"train_loss": scores.loss, "train_accuracy": scores.accuracy, "learning_rate": rate},
            )

    def _end_epoch(self, epoch: int, drawn: npt.NDArray[np.int64]) -> None:
        self.scheduler.step()
        self.group.telemetry.phase("validate", self.done)
        validation = score(
            self.step.model.module,
            self.validation,
            self.group,
            classes=self.classes,
            precision=self.step.precision,
        )
        facts = close_epoch(
            self.books,
            epoch=epoch + 1,
            drawn=drawn,
            train_size=self.params.train_size,
            validation=validation,
            group=self.group,
        )
        self.epochs.append(facts)
        self.books = EpochBooks()
        if self.group.rank == 0:
            values = {"validation_loss": validation.loss, "validation_accuracy": validation.accuracy}
            self.group.telemetry.metrics(self.done, values)
        self.group.telemetry.phase("train", self.done)
