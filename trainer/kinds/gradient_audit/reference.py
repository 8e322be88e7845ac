"""Stage `reference`: the objective's own gradient in one process, step by step, from rank 0's state."""

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.common.context import StageContext
from trainer.common.distributed import Group, process_group
from trainer.kinds.gradient_audit.comparison import compare
from trainer.kinds.gradient_audit.engine import fresh_model
from trainer.kinds.gradient_audit.handover import Handover, read_document
from trainer.kinds.gradient_audit.inspection import dtype_of
from trainer.kinds.gradient_audit.objective import Cell, Sums, buffers_of, extra_share, set_buffers, window_sums
from trainer.kinds.gradient_audit.seeding import seed_everything
from trainer.kinds.gradient_audit.windows import read_window
from trainer.targets.members import Target, TargetFault, fault_text
from trainer.targets.registry import load_target

LEARNING_RATE: Final = 0.1
"""Of the SGD step between windows, divided by the norm of a gradient that is longer than 1."""
SAME_GRADIENT: Final = 1e-6
"""Distance, as a share of the gradient's norm, up to which a wrong rule counts as the right one."""
MOST_REPEATED: Final = 16
"""Micro-batches whose loss is evaluated twice."""
SAME_LOSS: Final = {"float32": 1e-6, "float64": 1e-13}
"""Relative difference up to which two evaluations of a loss are the same."""


def run(context: StageContext) -> None:
    """Write the reference of every step."""
    with process_group(context) as group:
        write_reference(context, group)


def write_reference(context: StageContext, group: Group) -> None:
    """Write gradients, losses, controls, and the parameters after one step of the target's optimizer."""
    handover, params = Handover(context.paths), context.params
    group.telemetry.phase("import", 0)
    target = load_target(params.target)
    inspected = read_document(handover.inspection)["windows"]
    seed_everything(params.seed)
    model = fresh_model(target, group, torch.load(handover.state, weights_only=True), dtype_of(params))
    facts = []
    for step in range(params.steps):
        group.telemetry.phase("reference", step)
        window = read_window(target, inspected[step], step, group.device, dtype_of(params))
        if step == 0:
            refuse_random_loss(target, model, window, SAME_LOSS[params.dtype])
        sums = window_sums(target, model, window, step)
        gradient, found = _judged(target, sums, window, params)
        found["rates"] = rates = _rates(target, model, gradient)
        handover.save(handover.reference(step), gradient)
        facts.append(found)
        if step == params.steps - 1 and target.has("optimizer"):
            handover.save(handover.optimizer, optimizer_step(target, model, gradient))
        descend(model, gradient, rates)
        group.telemetry.progress(step + 1, params.steps, "steps")
    handover.write(handover.facts, {"steps": facts})


def refuse_random_loss(target: Target, model: nn.Module, window: list[list[Cell]], tolerance: float) -> None:
    """Raise TargetFault if the loss of the same micro-batch differs between two evaluations."""
    members = [name for name in ("loss_sum", "extra_loss") if target.has(name)]
    for cell in [cell for row in window for cell in row][:MOST_REPEATED]:
        for member in members:
            start, values = buffers_of(model), []
            for _ in range(2):
                set_buffers(model, start)
                values.append(float(target.loss(member, model, cell.batch, rank=cell.rank, step=0).detach()))
            set_buffers(model, start)
            if not math.isclose(*values, rel_tol=tolerance, abs_tol=tolerance):
                text = (
                    f"returned {values[0]!r}, then {values[1]!r} for the same batch and weights; a random loss has no "
                    "gradient to compare with: set dropout to 0 in build_model and make other random draws repeatable"
                )
                raise TargetFault(fault_text(target.name, member, text, rank=cell.rank, step=0))


def _judged(
    target: Target, sums: Sums, window: list[list[Cell]], params: Any
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the gradient of the objective in the type of the run, and its facts: losses, norm, rejected mistakes."""
    counts = [[cell.count for cell in row] for row in window]
    ranks, places, total = len(counts), len(counts[0]), sum(map(sum, counts))
    share = extra_share(target, ranks, places)
    extra = {name: share * value for name, value in sums.extra.items()}
    exact = _plus(sums.units, 1 / total, extra)
    wrong = {
        "rank_mean": (sums.rank_mean, 1 / ranks),
        "mean_of_means": (sums.mean_of_means, 1 / (ranks * places)),
        "missing_world_size": (sums.units, 1 / (total * ranks)),
    }
    facts = {
        "losses": sums.losses,
        "loss": sum(map(sum, sums.losses)) / total + share * sum(sums.extras),
        "norm": math.sqrt(sum(float(value.pow(2).sum()) for value in exact.values())),
        "wrong": {
            name: compare(exact, _plus(found, factor, extra).__getitem__, atol=params.atol, rtol=params.rtol).document()
            for name, (found, factor) in wrong.items()
        },
        "agree": [
            name
            for name, (found, factor) in wrong.items()
            if _distance(exact, _plus(found, factor, extra)) <= SAME_GRADIENT
        ],
    }
    return {name: value.to(device="cpu", dtype=dtype_of(params)) for name, value in exact.items()}, facts


def _distance(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> float:
    apart = sum(float((found[name] - value).pow(2).sum()) for name, value in expected.items())
    size = sum(float(value.pow(2).sum()) for value in expected.values())
    return math.sqrt(apart / size) if size else math.sqrt(apart)


def _plus(sums: Mapping[str, Tensor], factor: float, extra: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value * factor + extra[name] if extra else value * factor for name, value in sums.items()}


def _rates(target: Target, model: nn.Module, gradient: Mapping[str, Tensor]) -> dict[str, float]:
    norm = math.sqrt(sum(float(value.double().pow(2).sum()) for value in gradient.values()))
    rates = target.learning_rates(model, 0, LEARNING_RATE)
    return {name: rate / max(1.0, norm) for name, rate in rates.items()}


def descend(model: nn.Module, gradient: Mapping[str, Tensor], rates: Mapping[str, float]) -> None:
    """Subtract `rates` times `gradient` from the parameters."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in gradient:
                parameter.sub_(gradient[name].to(device=parameter.device, dtype=parameter.dtype) * rates[name])


def optimizer_step(target: Target, model: nn.Module, gradient: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters after one step of the target's optimizer with `gradient`, in a group of one process."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    alone = not dist.is_initialized()
    if alone:
        dist.init_process_group(
            "gloo",
            store=dist.HashStore(),  # type: ignore[attr-defined]
            rank=0,
            world_size=1,
        )
    try:
        for name, parameter in model.named_parameters():
            if name in gradient:
                parameter.grad = gradient[name].to(parameter.device).clone()
        with target.guarded("optimizer", 0, None):
            target.optimizer(model, 0).step()
        after = {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
    finally:
        if alone:
            dist.destroy_process_group()
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(before[name])
    return after
