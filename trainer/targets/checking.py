"""Calls every member of a target once, in one process and without a process group: a quick look before a run."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from trainer.contract.targets import MemberReport
from trainer.targets.batches import digest, model_digest
from trainer.targets.members import Target, TargetFault
from trainer.targets.registry import load_target


def check_target(name: str, ranks: int) -> list[MemberReport]:
    """Return what every member did; the list ends with the first one that others need."""
    reports: list[MemberReport] = []
    torch.manual_seed(0)
    try:
        for member, text in _checks(name, ranks):
            reports.append(MemberReport(member=member, ok=True, text=text))
    except TargetFault as error:
        member = str(error).partition("member ")[2].split(" ")[0].rstrip(":") or "target"
        reports.append(MemberReport(member=member, ok=False, text=str(error)))
    return reports


def _checks(name: str, ranks: int) -> Iterator[tuple[str, str]]:
    target = load_target(name)
    yield "name", f"{target.name}; the unit is the {target.unit}"
    model = target.build_model()
    size = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    yield "build_model", f"{type(model).__name__} with {size} trained components"
    windows = [_window(target, model, rank, ranks) for rank in range(ranks)]
    yield "window", f"{len(windows[0])} micro-batches on each of {ranks} ranks, the same at a second call"
    counts = [[target.count(batch, rank=rank, step=0) for batch in row] for rank, row in enumerate(windows)]
    if not sum(map(sum, counts)):
        raise TargetFault(f"target {name!r}, member count in step 0: the counts add up to 0; expected at least one")
    yield "count", "; ".join(f"rank {rank}: {', '.join(f'{n:g}' for n in row)}" for rank, row in enumerate(counts))
    first, number = windows[0][0], counts[0][0]
    yield "loss_sum", _loss(target, model, "loss_sum", first, number)
    for member in ("extra_loss", "padding_loss_sum"):
        if target.has(member):
            yield member, _loss(target, model, member, first, 0)
    if target.has("padding_count"):
        yield "padding_count", f"{target.padding_count(first, rank=0, step=0):g} in the first micro-batch"
    if target.has("sample_ids"):
        yield "sample_ids", f"{len(target.sample_ids(first, rank=0, step=0))} in the first micro-batch"
    if target.has("param_groups"):
        yield "param_groups", f"{len(set(target.learning_rates(model, 0, 0.1).values()))} learning rates"
    later = [member for member in ("wrap", "optimizer") if target.has(member)]
    yield "accumulate", f"not called: {', '.join(['it', *later])} may need a process group; a run calls it"


def _window(target: Target, model: nn.Module, rank: int, ranks: int) -> list[Any]:
    before = model_digest(model)
    found = target.window(0, rank, ranks)
    again = target.window(0, rank, ranks)
    where = f"target {target.name!r}, member window on rank {rank} in step 0"
    if model_digest(model) != before:
        raise TargetFault(f"{where}: changed the model; it may only return data")
    if [digest(batch) for batch in found] != [digest(batch) for batch in again]:
        raise TargetFault(f"{where}: gave other data at a second call; use a generator seeded from step and rank")
    return found


def _loss(target: Target, model: nn.Module, member: str, batch: Any, count: float) -> str:
    call: Callable[[], float] = lambda: float(target.loss(member, model, batch, rank=0, step=0).detach())  # noqa: E731
    values = [call(), call()]
    if abs(values[0] - values[1]) > 1e-6 * max(1.0, abs(values[0])):
        raise TargetFault(
            f"target {target.name!r}, member {member} on rank 0 in step 0: returned {values[0]:g}, then {values[1]:g} "
            "for the same batch; set dropout to 0 in build_model"
        )
    return f"{values[0]:.6g} for the first micro-batch" + (f", {values[0] / count:.6g} per unit" if count else "")
