"""Stage `inspect`: every rank builds the model and its windows; what breaks a rule or differs is refused."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainer.common.context import StageContext
from trainer.common.distributed import Group, process_group
from trainer.kinds.gradient_audit.engine import bits
from trainer.kinds.gradient_audit.handover import Handover
from trainer.kinds.gradient_audit.seeding import seed_everything
from trainer.targets.batches import digest, model_digest
from trainer.targets.members import Target, TargetFault, fault_text
from trainer.targets.registry import load_target


def run(context: StageContext) -> None:
    """Inspect the target on every rank."""
    with process_group(context) as group:
        inspect_target(context, group)


def dtype_of(params: Any) -> torch.dtype:
    """Return the type of the run."""
    found: torch.dtype = getattr(torch, params.dtype)
    return found


def inspect_target(context: StageContext, group: Group) -> None:
    """Build the model, compare it over ranks, look at all windows, and write rank 0's state. Collective.

    Raises TargetFault naming member and rank.
    """
    group.telemetry.phase("import", 0)
    target = load_target(context.params.target)
    group.telemetry.phase("build", 0)
    seed_everything(context.params.seed)
    model = target.build_model(group.rank).to(device=group.device, dtype=dtype_of(context.params))
    Inspection(target, group).model(model)
    windows = Inspection(target, group).windows(model, context.params.steps)
    if group.rank == 0:
        handover = Handover(context.paths)
        handover.save(handover.state, {name: value.detach().cpu() for name, value in _tensors(model)})
        document = {
            "target": target.name,
            "unit": target.unit,
            "parameters": {name: list(parameter.shape) for name, parameter in model.named_parameters()},
            "components": sum(item.numel() for item in model.parameters() if item.requires_grad),
            "windows": windows,
        }
        handover.write(handover.inspection, document)
    group.barrier("end of the inspection")


def _tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is compared between ranks."""

    target: Target
    group: Group

    def model(self, model: nn.Module) -> None:
        """Raise TargetFault if parameters or buffers differ between ranks in name, order, shape or type."""
        own = [
            (name, tuple(value.shape), str(value.dtype), bool(value.requires_grad)) for name, value in _tensors(model)
        ]
        everyone = self.group.gather_objects(own, "names of parameters")
        for rank, found in enumerate(everyone):
            text = _first_difference(everyone[0], found)
            if text:
                raise TargetFault(fault_text(self.target.name, "build_model", text, rank=rank))
        weights = self.group.gather_objects([bits(value) for _, value in _tensors(model)], "initial weights")
        if any(found != weights[0] for found in weights):
            self.group.telemetry.message("ranks start from different weights; all continue with those of rank 0")

    def windows(self, model: nn.Module, steps: int) -> list[dict[str, Any]]:
        """Return digests and counts of every step, by rank and micro-batch. Raises TargetFault."""
        found = []
        for step in range(steps):
            self.group.telemetry.phase("window", step)
            before = model_digest(model)
            batches = self.target.window(step, self.group.rank, self.group.world_size)
            if model_digest(model) != before:
                raise self._fault("window", "changed the model; it may only return data", self.group.rank, step)
            rows = self.group.gather_objects([self._facts(batch, step) for batch in batches], "micro-batches")
            found.append(self._checked(rows, step))
        return found

    def _facts(self, batch: Any, step: int) -> dict[str, Any]:
        rank, ids = self.group.rank, None
        if self.target.has("sample_ids"):
            ids = self.target.sample_ids(batch, rank=rank, step=step)
        return {
            "digest": digest(batch),
            "count": self.target.count(batch, rank=rank, step=step),
            "padding": self.target.padding_count(batch, rank=rank, step=step),
            "ids": ids,
        }

    def _checked(self, rows: list[list[dict[str, Any]]], step: int) -> dict[str, Any]:
        lengths = [len(row) for row in rows]
        odd = next((rank for rank, length in enumerate(lengths) if length != lengths[0]), None)
        if odd is not None:
            text = (
                f"returned {lengths[odd]} micro-batches, rank 0 has {lengths[0]}; every rank needs the same number of "
                "passes, because reductions wait for all ranks. A rank with less data gives batches of count 0"
            )
            raise self._fault("window", text, odd, step)
        total = sum(cell["count"] for row in rows for cell in row)
        if total <= 0:
            text = (
                f"the counts of all ranks add up to {total:g}; a mean over nothing is undefined, and all "
                f"{len(rows)} ranks stop together. Check labels, masks and ignored targets"
            )
            raise self._fault("count", text, None, step)
        return {key: [[cell[key] for cell in row] for row in rows] for key in ("digest", "count", "padding", "ids")}

    def _fault(self, member: str, text: str, rank: int | None, step: int) -> TargetFault:
        return TargetFault(fault_text(self.target.name, member, text, rank=rank, step=step))


def _first_difference(expected: list[Any], found: list[Any]) -> str:
    for place, (own, other) in enumerate(zip(expected, found, strict=False)):
        if own == other:
            continue
        if own[0] != other[0]:
            return (
                f"parameter {place} is {other[0]}, on rank 0 it is {own[0]}; expected the same names in the same order"
            )
        return f"{own[0]} is {_words(other)}, on rank 0 it is {_words(own)}; expected the same on every rank"
    if len(expected) != len(found):
        return f"has {len(found)} parameters and buffers, rank 0 has {len(expected)}; expected the same on every rank"
    return ""


def _words(item: Any) -> str:
    _, shape, dtype, trained = item
    return f"{dtype.removeprefix('torch.')} of shape {shape}{'' if trained else ', not trained'}"
