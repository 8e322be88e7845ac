"""Stage `audit`: every rank runs the code under audit and compares the gradient it left with the reference."""

import gc
from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.common import rank_devices
from trainer.common.context import StageContext
from trainer.common.distributed import Group, process_group
from trainer.kinds.gradient_audit.buffers import BufferAudit, batch_statistics
from trainer.kinds.gradient_audit.comparison import Comparison, compare
from trainer.kinds.gradient_audit.engine import Engine, whole
from trainer.kinds.gradient_audit.handover import Handover, read_document
from trainer.kinds.gradient_audit.inspection import dtype_of
from trainer.kinds.gradient_audit.replay import replay
from trainer.kinds.gradient_audit.seeding import seed_everything
from trainer.kinds.gradient_audit.windows import own_cells
from trainer.targets.registry import load_target

SMALL: Final = 1_000_000
"""Parameters up to which the weights of the units are measured even if everything matches."""


def run(context: StageContext) -> None:
    """Audit the target on every rank."""
    with process_group(context) as group:
        audit_target(context, group)


def audit_target(context: StageContext, group: Group) -> None:
    """Write what this rank measured, and the evidence for a diagnosis if anything does not match. Collective."""
    group.telemetry.phase("import", 0)
    handover, params = Handover(context.paths), context.params
    target = load_target(params.target)
    inspected = read_document(handover.inspection)["windows"]
    facts = read_document(handover.facts)["steps"]
    group.telemetry.phase("build", 0)
    seed_everything(params.seed)
    state = torch.load(handover.state, weights_only=True)
    engine = Engine(target, group, state, dtype_of(params))
    report = {**describe(engine), **AuditedSteps(context, group, engine).run(inspected, facts)}
    small = sum(parameter.numel() for parameter in engine.model.parameters()) <= SMALL
    is_wrong = any(_outside(item["comparison"]) for item in report["steps"])
    if small:
        report["replay_from"] = 0
    del engine
    gc.collect()  # a wrapped model is part of cycles, and the replay needs its memory
    handover.write(handover.report(group.rank), report)
    everyone = group.gather_objects((report["replay_from"], is_wrong), "what does not match")
    first = min(step for step, _ in everyone)
    if first < params.steps:
        steps = params.steps if small else min(first + 2, params.steps)
        replay(context, group, target, state, steps=steps, is_wrong=any(wrong for _, wrong in everyone))
    group.barrier("end of the audit")


def describe(engine: Engine) -> dict[str, Any]:
    """Return this rank's device and engine."""
    return {
        **rank_devices.describe(engine.group),
        "ddp": engine.is_ddp,
        "sharded": engine.sharded,
        "engine": type(engine.wrapped).__name__,
        "batch_statistics": batch_statistics(engine.model),
    }


class AuditedSteps:
    """All steps on one rank."""

    def __init__(self, context: StageContext, group: Group, engine: Engine) -> None:
        self._params, self._group, self._engine = context.params, group, engine
        self._handover = Handover(context.paths)
        self._buffers = BufferAudit(engine)

    def run(self, inspected: list[dict[str, Any]], facts: list[dict[str, Any]]) -> dict[str, Any]:
        """Return what was measured, as JSON values. Collective."""
        steps: list[dict[str, Any]] = []
        for step, known in enumerate(inspected):
            cells = own_cells(self._engine.target, self._group, known, step, self._engine.dtype)
            batches = [cell.batch for cell in cells]
            self._buffers.begin()
            observed = self._engine.run(batches, step)
            reference = torch.load(self._handover.reference(step), weights_only=True)
            found = compare(reference, observed.gradients.__getitem__, atol=self._params.atol, rtol=self._params.rtol)
            apart = self._ranks_apart(observed.gradients, reference)
            if self._group.rank == 0:  # local, also if the model is sharded: the plain copy is whole
                self._buffers.end(batches, step)
            steps.append(
                {
                    "comparison": found.document(),
                    "apart": apart.document(),
                    "missing": observed.missing,
                    "backwards": observed.backwards,
                    "reductions": observed.reductions,
                    "loss": observed.loss,
                }
            )
            self._tell(step, found, observed.reductions, facts[step]["loss"])
            if step + 1 < len(inspected):
                self._engine.step(reference, facts[step]["rates"])
        moves = [
            (item.name, item.step, _list(item.once), _list(item.twice), _list(item.observed))
            for item in self._buffers.found
        ]
        odd = [step for step, item in enumerate(steps) if _outside(item["comparison"]) or self._extra(item)]
        odd += [item.step for item in self._buffers.found]
        return {
            "steps": steps,
            "moves": moves,
            "buffers": self._buffers.names,
            "replay_from": min(odd, default=len(steps)),
            "optimizer": self._optimizer(reference) if self._engine.target.has("optimizer") else None,
        }

    def _extra(self, item: Mapping[str, Any]) -> bool:
        """Return whether DDP did not reduce exactly once in a window, with the last backward pass."""
        return self._engine.is_ddp and item["reductions"] != [item["backwards"] - 1]

    def _tell(self, step: int, found: Comparison, reductions: list[int] | None, loss: float) -> None:
        telemetry = self._group.telemetry
        telemetry.progress(step + 1, self._params.steps, "steps")
        telemetry.metrics(step, {"loss": loss, "max_abs_error": found.max_abs_error, "share": found.worst.share})
        if reductions is not None:
            telemetry.sync(step, len(reductions), 0)

    def _ranks_apart(self, own: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Comparison:
        """Compare this rank's gradient with rank 0's, at the tolerance for the reference. Collective."""

        def shifted(name: str) -> Tensor:
            first = own[name].to(self._group.device, copy=True)
            dist.broadcast(first, 0)
            # As if the difference were one from the reference, so that both have the same limit.
            return reference[name].double() + (own[name].double() - first.cpu().double())

        with self._group.telemetry.collective("rank 0's gradient"):
            return compare(reference, shifted, atol=self._params.atol, rtol=self._params.rtol)

    def _optimizer(self, reference: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return how far one step of the target's optimizer is from that of one process. Collective."""
        engine = self._engine
        engine.group.telemetry.phase("optimizer", self._params.steps)
        before = {name: whole(value).cpu().clone() for name, value in engine.model.named_parameters()}
        engine.give_gradients(reference)
        optimizer = engine.target.optimizer(engine.model, engine.group.rank)
        with engine.target.guarded("optimizer", engine.group.rank, None):
            optimizer.step()
        expected = torch.load(self._handover.optimizer, weights_only=True)
        moved = {name: whole(value).cpu() - before[name] for name, value in engine.model.named_parameters()}
        wanted = {name: value - before[name] for name, value in expected.items()}
        found = compare(wanted, moved.__getitem__, atol=self._params.atol, rtol=self._params.rtol)
        return {"comparison": found.document(), "name": type(optimizer).__name__}


def _outside(document: Mapping[str, Any]) -> bool:
    return any(item["outside"] for item in document["tensors"])


def _list(value: Tensor) -> list[float]:
    found: list[float] = value.double().flatten().tolist()
    return found
