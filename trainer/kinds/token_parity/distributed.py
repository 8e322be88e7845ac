"""Stage `distributed`: every rank's gradients under the audited rule and under wrong ones."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from trainer.common.context import StageContext
from trainer.common.distributed import Group, process_group
from trainer.common.rank_devices import describe
from trainer.common.sync_counter import SyncCounter
from trainer.common.window import gradients
from trainer.contract.normalisation import EmptyWindowError
from trainer.kinds.token_parity.handover import (
    AUDITED,
    EMPTY_RANK,
    LEFT_OVER,
    LOCALLY_EMPTY,
    MEAN_OF_MEANS,
    RANK_MEAN,
    Handover,
    write_document,
)
from trainer.kinds.token_parity.reference import window_batches
from trainer.kinds.token_parity.signed import signed_gradients
from trainer.kinds.token_parity.variants import freeze_some, reductions, run_window
from trainer.tokens.batches import Batch, without_targets
from trainer.tokens.model import build_model, weights_digest
from trainer.tokens.plan import PlanShape, WindowSampler, data_lock

EXPERIMENTS = 6


def run(context: StageContext) -> None:
    """Audit one window and write this rank's gradients and report."""
    with process_group(context) as group:
        shape: PlanShape = context.params.shape
        group.telemetry.phase("build", 0)
        audit = WindowAudit.of(group, shape, context.params.variant)
        found = audit.gradients()
        empty = audit.empty_window()
        group.telemetry.phase("signed-example", 0)
        signed = signed_gradients(group)
        group.telemetry.progress(EXPERIMENTS, EXPERIMENTS, "windows")
        handover = Handover(context.paths)
        torch.save(found, handover.gradients(group.rank))
        report = {**audit.report, **describe(group), "empty_window": empty, "signed": signed}
        write_document(handover.report(group.rank), {**report, "data_lock": data_lock(shape)})
        group.barrier("end of the audit")


def wrap(group: Group, model: torch.nn.Module, variant: str = "correct") -> tuple[DistributedDataParallel, SyncCounter]:
    """Return the model wrapped in DDP, with a counting hook that keeps DDP's averaging."""
    freeze_some(model, variant, frozen=True)
    devices = [group.device.index] if group.device.type == "cuda" else None
    with group.telemetry.collective("wrap the model"):  # compares shapes and copies rank 0's weights
        wrapped = DistributedDataParallel(model, device_ids=devices)
    freeze_some(model, variant, frozen=False)
    counter = SyncCounter(group.telemetry)
    counter.attach(wrapped)
    return wrapped, counter


class WindowAudit:
    """One rank's part of the audit of a window. Without optimizer steps, all experiments use the same weights."""

    def __init__(
        self, group: Group, seed: int, batches: Sequence[Batch], variant: str, earlier: Sequence[Batch] = ()
    ) -> None:
        """`earlier` are the batches of the window before, which `stale_gradients` leaves its gradients from."""
        model = build_model(seed).to(group.device)
        self.report: dict[str, Any] = {"weights": weights_digest(model), "windows": {}}
        self._group, self._batches, self._variant, self._earlier = group, batches, variant, earlier
        self._model, self._counter = wrap(group, model, variant)
        self._done = 0
        self._left: dict[str, Tensor] = {}

    @classmethod
    def of(cls, group: Group, shape: PlanShape, variant: str) -> "WindowAudit":
        """Return the audit of the first window of a plan."""
        sampler = WindowSampler(shape)
        batches = window_batches(sampler.next_window(), shape, group.device)[group.rank]
        earlier: Sequence[Batch] = ()
        if variant == "stale_gradients":
            earlier = window_batches(sampler.next_window(), shape, group.device)[group.rank]
        return cls(group, shape.seed, batches, variant, earlier)

    def gradients(self) -> dict[str, dict[str, Tensor]]:
        """Return this rank's gradient of every window, by window name."""
        empty = [without_targets(batch) for batch in self._batches] if self._group.rank == EMPTY_RANK else self._batches
        return {
            AUDITED: self._window(AUDITED, self._batches, self._variant),
            **({LEFT_OVER: self._left} if self._left else {}),
            RANK_MEAN: self._window(RANK_MEAN, self._batches, RANK_MEAN),
            MEAN_OF_MEANS: self._window(MEAN_OF_MEANS, self._batches, MEAN_OF_MEANS),
            LOCALLY_EMPTY: self._window(LOCALLY_EMPTY, empty, self._variant),
        }

    def empty_window(self) -> dict[str, Any]:
        """Return what this rank did with a window in which no rank has a target."""
        self._begin("empty_window")
        batches = [without_targets(batch) for batch in self._batches]
        error, text = None, "the window was accepted"
        try:
            self._accumulate(batches, self._variant)
        except EmptyWindowError as refusal:
            error, text = type(refusal).__name__, str(refusal)
        # Another collective: a rank that continued alone would be missing here.
        errors = self._group.gather_objects(error, "outcome of the empty window")
        return {"error": error, "text": text, "errors": errors, "syncs": self._counter.take().count}

    def _window(self, name: str, batches: Sequence[Batch], variant: str) -> dict[str, Tensor]:
        self._begin(name)
        self._counter.take()
        sums, counts = self._accumulate(batches, variant)
        synced = self._counter.take()
        self.report["windows"][name] = {
            "tokens": [batch.tokens for batch in batches],
            "sums": sums,
            "global_tokens": counts.window,
            "syncs": synced.count,
            "reductions": reductions(variant, synced.count, len(batches)),
            "bytes": synced.size,
            "buckets": synced.buckets,
            "communication_seconds": synced.seconds,
        }
        self._group.telemetry.sync(0, synced.count, synced.size)
        if name == AUDITED:
            loss = self._group.sum_floats([sum(sums)], "loss to show")[0] / counts.window
            values = {"loss_per_token": loss, "rank_tokens": counts.rank, "global_tokens": counts.window}
            self._group.telemetry.metrics(0, values)
        return gradients(self._model.module)

    def _accumulate(self, batches: Sequence[Batch], variant: str) -> Any:
        return run_window(self._group, self._model, batches, variant, before=self._leave)

    def _leave(self) -> None:
        """Leave the gradient of the window before, and keep a copy of it."""
        run_window(self._group, self._model, self._earlier, "correct")
        self._counter.take()
        self._left = gradients(self._model.module)

    def _begin(self, name: str) -> None:
        self._group.telemetry.progress(self._done, EXPERIMENTS, "windows")
        self._group.telemetry.phase(name.replace("_", "-"), 0)
        self._done += 1
