"""One rank of one training of the token model: the live objects, the update, and the history."""

import random
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR

from trainer.common.checkpoints.digest import digest
from trainer.common.checkpoints.rng import capture_rng
from trainer.common.checkpoints.state import TrainingState
from trainer.common.checkpoints.store import Restored
from trainer.common.distributed import Group
from trainer.common.window import accumulate
from trainer.kinds.resume.layout import LayoutRecorder
from trainer.kinds.resume.params import OPTIMIZER_FAULT, RNG_FAULT, SAMPLER_FAULT, ResumeParams
from trainer.tokens.batches import loss_sum, make_batch
from trainer.tokens.corpus import build_corpus
from trainer.tokens.model import build_model
from trainer.tokens.plan import PlanShape, WindowSampler

DROPOUT: Final = 0.1
MOMENTUM: Final = 0.9


def plan_shape(params: ResumeParams) -> PlanShape:
    """Return everything the order of the data depends on."""
    return PlanShape(
        seed=params.seed,
        world_size=params.world_size,
        accumulation=params.accumulation,
        batch_size=params.batch_size_per_rank,
    )


def seed_rank(seed: int, rank: int) -> None:
    """Seed every global generator of this process with `seed + rank`, so that no two ranks drop the same units."""
    random.seed(seed + rank)
    np.random.seed((seed + rank) % 2**32)
    torch.manual_seed(seed + rank)


class Trajectory:
    """Model, optimizer, schedule, sampler and history of one rank."""

    def __init__(self, params: ResumeParams, group: Group) -> None:
        self._params, self._group = params, group
        self._corpus = build_corpus(params.seed, params.world_size)
        model = build_model(params.seed, dropout=DROPOUT).to(group.device)
        self._ddp = DistributedDataParallel(model, device_ids=[group.device] if group.device.type == "cuda" else None)
        self._hook = LayoutRecorder(group.telemetry, ordered=params.variant == "correct")
        self._hook.attach(self._ddp)
        optimizer = SGD(model.parameters(), lr=params.learning_rate, momentum=MOMENTUM)
        self._scheduler = CosineAnnealingLR(optimizer, params.updates)
        self.state = TrainingState(
            model=self._ddp,
            optimizer=optimizer,
            scheduler=self._scheduler,
            updates_in=lambda record: len(record["losses"]),
        )
        self.sampler = WindowSampler(plan_shape(params))
        self.losses: list[float] = []
        """Loss per token over all ranks, one per update."""
        self._ids: list[list[list[int]]] = []
        self._layouts: list[str] = []
        self._saves: list[dict[str, Any]] = []
        self._starts: list[dict[str, Any]] = []
        seed_rank(params.seed, group.rank)

    @property
    def step(self) -> int:
        """Finished updates."""
        return len(self.losses)

    def adopt(self, restored: Restored) -> None:
        """Continue with the history and data position of a checkpoint whose tensors are already loaded."""
        record = restored.sampler
        self.sampler.restore(record["sampler"])
        self.losses = record["losses"].tolist()
        self._ids = record["ids"].tolist()
        self._layouts, self._saves, self._starts = (list(record[name]) for name in ("layouts", "saves", "starts"))

    def note_start(self, attempt: int) -> None:
        """Record the state with which this process starts its first update."""
        self._starts.append({"attempt": attempt, "step": self.step, "digests": self._digests()})

    def record(self) -> Mapping[str, Any]:
        """Return sampler position and history for a checkpoint, after recording the current live state."""
        self._saves.append({"step": self.step, "digests": self._digests()})
        return {
            "sampler": self.sampler.state(),
            "ids": torch.tensor(self._ids, dtype=torch.int64),
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "layouts": list(self._layouts),
            "saves": list(self._saves),
            "starts": list(self._starts),
        }

    def update(self) -> None:
        """Train one window: one optimizer step, one synchronisation. Raises EmptyWindowError on all ranks."""
        group = self._group
        window = self.sampler.next_window()[group.rank]
        batches = [make_batch([self._corpus.sequence(item) for item in ids], group.device) for ids in window]
        tokens = [batch.tokens for batch in batches]
        sums, counts = accumulate(group, self._ddp, batches, tokens, loss_sum, step=self.step)
        group.telemetry.mark("optimizer")
        self.state.optimizer.step()
        self._scheduler.step()
        self._finish(window, group.sum_floats([sum(sums)], "loss sum")[0] / counts.window)

    def break_on_purpose(self, fault: str) -> None:
        """Undo one part of a correct restore. Raises ValueError for an unknown fault."""
        if fault == RNG_FAULT:
            seed_rank(self._params.seed, self._group.rank)
        elif fault == SAMPLER_FAULT:
            self.sampler = WindowSampler(plan_shape(self._params))
        elif fault == OPTIMIZER_FAULT:
            self.state.optimizer.state.clear()
        else:
            raise ValueError(f"unknown fault {fault!r}")

    def _finish(self, window: list[list[int]], loss: float) -> None:
        rate = float(self.state.optimizer.param_groups[0]["lr"])
        self._ids.append(window)
        self.losses.append(loss)
        self._layouts.append(self._hook.take_layout())
        synced = self._hook.take()
        telemetry = self._group.telemetry
        telemetry.mark("train", self.step)
        telemetry.sync(self.step, synced.count, synced.size)
        telemetry.metrics(self.step, {"loss": loss, "learning_rate": rate})

    def _digests(self) -> dict[str, str]:
        shared = self.state.shared()
        return {
            "model": digest(shared["model"]),
            "optimizer": digest(shared["optimizer"]),
            "scheduler": digest(shared["scheduler"]),
            "sampler": digest(self.sampler.state()),
            "rng": digest(capture_rng(self.state.device)),
        }
