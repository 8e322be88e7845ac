"""Trainings of the kind `cifar` that are correct or broken in one place: run once by torchrun, judged by the tests.

Entry `tests.support.cifar_lab:run`; rank 0 writes the facts of every experiment to `work/lab/<experiment>/`.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from trainer.common.context import StageContext
from trainer.common.distributed import Group, process_group
from trainer.common.sync_counter import SyncCounter
from trainer.contract.files import make_folder, write_json_atomically
from trainer.contract.paths import RunPaths
from trainer.kinds.cifar.data.split import PreparedData
from trainer.kinds.cifar.facts import MemoryFacts
from trainer.kinds.cifar.train.loop import Training
from trainer.kinds.cifar.train.setup import autocast, state_digest
from trainer.kinds.cifar.train.stage import build_training, conclude
from trainer.kinds.cifar.train.window_step import WindowStep


class ForwardOutside(WindowStep):
    """A broken twin: only the backward pass is inside `no_sync`."""

    def micro_batch(self, images: Tensor, labels: Tensor, *, share: int, synchronise: bool) -> tuple[Tensor, Tensor]:
        """Run the forward pass while DDP still expects to synchronise."""
        loss, logits = self.forward(images, labels)
        with nullcontext() if synchronise else self.model.no_sync():
            torch.autograd.backward(loss / share)
        return loss.detach(), logits.detach()


class AroundTheWrapper(WindowStep):
    """A broken twin: the loss is computed through `.module`, so that DDP never prepares a reduction."""

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Call the network itself."""
        with autocast(self.device, self.precision):
            logits = self.model.module(images)
        return nn.functional.cross_entropy(logits, labels), logits


class NoCheckpoints:
    """Replaces the continuation that a training calls after an update."""

    def after_update(self, step: int, sampler: Callable[[], Mapping[str, Any]], *, due: bool = False) -> bool:  # noqa: ARG002
        """Never save, never stop."""
        return False


def run(context: StageContext) -> None:
    """Run every experiment."""
    with process_group(context) as group:
        for name, experiment in EXPERIMENTS.items():
            experiment(context, group, name)
        group.barrier("end of the lab")


def train(
    context: StageContext,
    group: Group,
    name: str,
    *,
    mode: str = "no_sync",
    breaking: Callable[[Training], None] | None = None,
    **changes: Any,
) -> Training:
    """Train with `changes` to the parameters, and write the facts; `breaking` plants a fault before the first step."""
    lab = RunPaths(context.paths.work / "lab" / name)
    make_folder(lab.work, within=context.paths.root)
    card = PreparedData(context.paths).card()
    params = context.params.model_copy(update=changes)
    here = replace(context, params=params)
    training = build_training(params, group, context=here, card=card, mode=mode)
    weights = state_digest(training.step.model.module)
    if breaking is not None:
        breaking(training)
    training.run(NoCheckpoints())  # type: ignore[arg-type]
    memory = MemoryFacts(plain=0, checkpointed=0)
    facts = conclude(here, training, card, mode, weights=weights, memory=memory)
    last = torch.cat([item.detach().flatten() for item in training.step.model.module.parameters()])
    everyone = group.gather_objects(last[:2000].tolist(), "weights of the lab")
    if group.rank == 0:
        facts.save(lab)
        write_json_atomically(lab.work / "weights.json", everyone)
    return training


def _step(twin: type[WindowStep]) -> Callable[[Training], None]:
    def breaking(training: Training) -> None:
        values = {field.name: getattr(training.step, field.name) for field in fields(training.step)}
        training.step = twin(**values)

    return breaking


def _synchronise_always(training: Training) -> None:
    training.step = replace(training.step, mode="every")


def _count_double(training: Training) -> None:
    once = training.counter.record_synchronisation

    def twice() -> None:
        once()
        once()

    training.counter.record_synchronisation = twice  # type: ignore[method-assign]


def _blind(training: Training) -> None:
    if training.witness is not None:
        training.witness._backend = "another"


def _without_hook(context: StageContext, group: Group, name: str) -> None:
    with patch.object(SyncCounter, "attach"):
        train(context, group, name)


EXPERIMENTS: dict[str, Callable[[StageContext, Group, str], Any]] = {
    "every": lambda context, group, name: train(context, group, name, mode="every"),
    "no_sync": train,
    "buckets_every": lambda context, group, name: train(context, group, name, mode="every", bucket_cap_mb=0.3),
    "buckets_no_sync": lambda context, group, name: train(context, group, name, bucket_cap_mb=0.3),
    "checkpointing": lambda context, group, name: train(context, group, name, activation_checkpointing=True),
    "hook_double": lambda context, group, name: train(context, group, name, breaking=_count_double),
    "hook_missing": _without_hook,
    "forward_outside": lambda context, group, name: train(context, group, name, breaking=_step(ForwardOutside)),
    "bypassed": lambda context, group, name: train(context, group, name, breaking=_step(AroundTheWrapper)),
    "always": lambda context, group, name: train(context, group, name, breaking=_synchronise_always),
    "blind_profiler": lambda context, group, name: train(context, group, name, breaking=_blind),
}
