"""Stage `train`: the planned number of updates under the audited rule, then the evaluation."""

import math
from typing import Any

import torch

from trainer.common.checkpoints.identity import Identity
from trainer.common.checkpoints.state import TrainingState
from trainer.common.checkpoints.store import CheckpointStore
from trainer.common.context import StageContext
from trainer.common.continuation import KEEP, Continuation
from trainer.common.distributed import Group, process_group
from trainer.contract.exits import EXIT_PREEMPTED
from trainer.kinds.token_parity.distributed import wrap
from trainer.kinds.token_parity.handover import Handover, write_document
from trainer.kinds.token_parity.variants import run_window
from trainer.tokens.batches import make_batch
from trainer.tokens.corpus import build_corpus
from trainer.tokens.evaluate import evaluate
from trainer.tokens.model import build_model
from trainer.tokens.plan import WindowSampler, data_lock

FREE = frozenset({"updates", "atol", "rtol"})
"""Parameters that control where to stop and what to accept, but not the trajectory."""
VALIDATIONS = 10
"""Evaluates the validation sequences during training."""


def run(context: StageContext) -> int:
    """Train and evaluate; return the exit code, which says whether the run was preempted."""
    with process_group(context) as group:
        training = Training(context, group)
        finished = training.run()
        if finished:
            training.finish()
    return 0 if finished else EXIT_PREEMPTED


class Training:
    """One rank's training of the token model."""

    def __init__(self, context: StageContext, group: Group) -> None:
        self._context, self._group, self._params = context, group, context.params
        self._corpus = build_corpus(self._params.seed, self._params.world_size)
        self._sampler = WindowSampler(self._params.shape)
        self._history: list[dict[str, Any]] = []
        self._model, self._counter = wrap(group, build_model(self._params.seed).to(group.device), self._params.variant)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=self._params.learning_rate)

    def run(self) -> bool:
        """Make all remaining updates; return False if all ranks saved and stopped early on request."""
        updates = self._params.updates
        state = TrainingState(
            model=self._model, optimizer=self._optimizer, updates_in=lambda sampler: len(sampler["history"])
        )
        store = CheckpointStore(
            self._context.paths.checkpoints(),
            Identity.of(self._context, data_lock(self._params.shape), free=FREE),
            keep=KEEP,
            telemetry=self._group.telemetry,
            run_root=self._context.paths.root,
        )
        with Continuation(
            context=self._context, group=self._group, store=store, state=state, last=updates
        ) as continuation:
            restored = continuation.restore()
            if restored is not None:
                self._sampler.restore(restored.sampler["plan"])
                self._history = list(restored.sampler["history"])
            first = restored.step if restored is not None else 0
            self._group.telemetry.phase("train", first)
            for step in range(first, updates):
                self._update(step)
                if continuation.after_update(step + 1, self._progress_state):
                    return False
        return True

    def finish(self) -> None:
        """Evaluate on the test sequences and store history and scores for later stages."""
        self._group.telemetry.phase("evaluate", self._params.updates)
        test = evaluate(self._group, self._model.module, self._corpus.test)
        validation = evaluate(self._group, self._model.module, self._corpus.validation)
        self._group.telemetry.metrics(
            self._params.updates,
            {"test_loss_per_token": test.loss_per_token, "test_token_accuracy": test.token_accuracy},
        )
        syncs = self._group.gather_objects([row["syncs"] for row in self._history], "synchronisation counts")
        if self._group.rank == 0:
            write_document(
                Handover(self._context.paths).training,
                {
                    "history": self._history,
                    "syncs": syncs,
                    "test": test.document(),
                    "validation": validation.document(),
                },
            )

    def _update(self, step: int) -> None:
        telemetry = self._group.telemetry
        ids = self._sampler.next_window()[self._group.rank]
        batches = [make_batch([self._corpus.sequence(item) for item in batch], self._group.device) for batch in ids]
        sums, counts = run_window(self._group, self._model, batches, self._params.variant, step=step)
        synced = self._counter.take()
        telemetry.mark("optimizer")
        self._optimizer.step()
        telemetry.mark("train", step + 1)
        loss = self._group.sum_floats([sum(sums)], "loss to show")[0] / counts.window
        row: dict[str, Any] = {"step": step + 1, "loss": loss, "tokens": counts.window, "syncs": synced.count}
        values: dict[str, float | None] = {"loss_per_token": loss, "global_tokens": counts.window}
        if (step + 1) % max(1, self._params.updates // VALIDATIONS) == 0:
            row["validation"] = evaluate(self._group, self._model.module, self._corpus.validation).loss_per_token
            values["validation_loss_per_token"] = row["validation"]
        if not math.isfinite(loss) and all(math.isfinite(earlier["loss"]) for earlier in self._history):
            telemetry.message(f"the loss is {loss} since update {step + 1}: the training has diverged", "warning")
        self._history.append(row)
        telemetry.sync(step + 1, synced.count, synced.size)
        telemetry.metrics(step + 1, values)
        telemetry.progress(step + 1, self._params.updates, "updates")

    def _progress_state(self) -> dict[str, Any]:
        return {"plan": self._sampler.state(), "history": self._history}
