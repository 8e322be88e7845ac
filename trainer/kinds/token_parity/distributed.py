"""Stage `distributed`: every rank's gradients under the audited rule and under wrong ones."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from trainer.common.context import StageContext
from trainer.common.distributed import Group, process_group
from trainer.common.machine import cpu_model
from trainer.common.sync_counter import SyncCounter
from trainer.common.window import RULES, Rule, accumulate, gradients
from trainer.contract.normalisation import EmptyWindowError
from trainer.kinds.token_parity.handover import (
    AUDITED,
    EMPTY_RANK,
    LOCALLY_EMPTY,
    MEAN_OF_MEANS,
    RANK_MEAN,
    Handover,
    write_document,
)
from trainer.kinds.token_parity.reference import window_batches
from trainer.kinds.token_parity.signed import signed_gradients
from trainer.tokens.batches import Batch, loss_sum, without_targets
from trainer.tokens.model import build_model, weights_digest
from trainer.tokens.plan import PlanShape, WindowSampler, data_lock

EXPERIMENTS = 6


def run(context: StageContext) -> None:
    """Audit one window and write this rank's gradients and report."""
    with process_group(context) as group:
        shape: PlanShape = context.params.shape
        group.telemetry.phase("build", 0)
        batches = window_batches(WindowSampler(shape).next_window(), shape, group.device)[group.rank]
        audit = WindowAudit(group, shape.seed, batches, RULES[context.params.variant])
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


def wrap(group: Group, model: torch.nn.Module) -> tuple[DistributedDataParallel, SyncCounter]:
    """Return the model wrapped in DDP, with a counting hook that keeps DDP's averaging."""
    devices = [group.device.index] if group.device.type == "cuda" else None
    with group.telemetry.collective("wrap the model"):  # compares shapes and copies rank 0's weights
        wrapped = DistributedDataParallel(model, device_ids=devices)
    counter = SyncCounter(group.telemetry)
    counter.attach(wrapped)
    return wrapped, counter


def describe(group: Group) -> dict[str, Any]:
    """Return this rank's device."""
    on_gpu = group.device.type == "cuda"
    return {
        "rank": group.rank,
        "device": str(group.device),
        "backend": group.backend,
        "gpu": torch.cuda.get_device_name(group.device) if on_gpu else None,
        "cuda_runtime": torch.version.cuda if on_gpu else None,
        "threads": torch.get_num_threads(),
        "cpu": cpu_model(),
    }


class WindowAudit:
    """One rank's part of the audit of a window. Without optimizer steps, all experiments use the same weights."""

    def __init__(self, group: Group, seed: int, batches: Sequence[Batch], rule: Rule) -> None:
        model = build_model(seed).to(group.device)
        self.report: dict[str, Any] = {"weights": weights_digest(model), "windows": {}}
        self._group, self._batches, self._rule = group, batches, rule
        self._model, self._counter = wrap(group, model)
        self._done = 0

    def gradients(self) -> dict[str, dict[str, Tensor]]:
        """Return this rank's gradient of every window, by window name."""
        empty = [without_targets(batch) for batch in self._batches] if self._group.rank == EMPTY_RANK else self._batches
        return {
            AUDITED: self._window(AUDITED, self._batches, self._rule),
            RANK_MEAN: self._window(RANK_MEAN, self._batches, RULES[RANK_MEAN]),
            MEAN_OF_MEANS: self._window(MEAN_OF_MEANS, self._batches, RULES[MEAN_OF_MEANS]),
            LOCALLY_EMPTY: self._window(LOCALLY_EMPTY, empty, self._rule),
        }

    def empty_window(self) -> dict[str, Any]:
        """Return what this rank did with a window in which no rank has a target."""
        self._begin("empty_window")
        batches = [without_targets(batch) for batch in self._batches]
        error, text = None, "the window was accepted"
        try:
            self._accumulate(batches, self._rule)
        except EmptyWindowError as refusal:
            error, text = type(refusal).__name__, str(refusal)
        # Another collective: a rank that continued alone would be missing here.
        errors = self._group.gather_objects(error, "outcome of the empty window")
        return {"error": error, "text": text, "errors": errors, "syncs": self._counter.take().count}

    def _window(self, name: str, batches: Sequence[Batch], rule: Rule) -> dict[str, Tensor]:
        self._begin(name)
        self._counter.take()
        sums, counts = self._accumulate(batches, rule)
        synced = self._counter.take()
        self.report["windows"][name] = {
            "tokens": [batch.tokens for batch in batches],
            "sums": sums,
            "global_tokens": counts.window,
            "syncs": synced.count,
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

    def _accumulate(self, batches: Sequence[Batch], rule: Rule) -> Any:
        tokens = [batch.tokens for batch in batches]
        return accumulate(self._group, self._model, batches, tokens, loss_sum, rule=rule)

    def _begin(self, name: str) -> None:
        self._group.telemetry.progress(self._done, EXPERIMENTS, "windows")
        self._group.telemetry.phase(name.replace("_", "-"), 0)
        self._done += 1
