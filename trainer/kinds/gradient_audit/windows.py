"""The micro-batches of a window as the ranks and the reference read them: always those that `inspect` saw."""

from collections.abc import Mapping
from typing import Any

import torch

from trainer.common.distributed import Group
from trainer.kinds.gradient_audit.objective import Cell
from trainer.targets.batches import digest, prepared
from trainer.targets.members import Target, TargetFault, fault_text


def read_window(
    target: Target, known: Mapping[str, Any], step: int, device: torch.device, dtype: torch.dtype
) -> list[list[Cell]]:
    """Return all ranks' cells of a step. Raises TargetFault if a micro-batch is not what it was on its rank."""
    ranks = range(len(known["digest"]))
    return [row_of(target, known, step, rank=rank, device=device, dtype=dtype) for rank in ranks]


def own_cells(target: Target, group: Group, known: Mapping[str, Any], step: int, dtype: torch.dtype) -> list[Cell]:
    """Return this rank's cells of a step. Raises TargetFault if they are not those of the inspection."""
    return row_of(target, known, step, rank=group.rank, device=group.device, dtype=dtype)


def row_of(
    target: Target, known: Mapping[str, Any], step: int, *, rank: int, device: torch.device, dtype: torch.dtype
) -> list[Cell]:
    """Return the cells of one rank in one step, on `device`. Raises TargetFault."""
    batches = target.window(step, rank, len(known["digest"]))
    _check(target, [digest(batch) for batch in batches], known["digest"][rank], rank, step)
    counts = known["count"][rank]
    return [Cell(rank, place, prepared(batch, device, dtype), counts[place]) for place, batch in enumerate(batches)]


def _check(target: Target, found: list[str], expected: list[str], rank: int, step: int) -> None:
    if found != expected:
        pairs = enumerate(zip(found, expected, strict=False))
        place = next((place for place, (own, other) in pairs if own != other), min(len(found), len(expected)))
        text = (
            f"gave another micro-batch {place} than when it was first called with the same arguments; its data may "
            "only depend on step, rank and world_size: use a generator seeded from them"
        )
        raise TargetFault(fault_text(target.name, "window", text, rank=rank, step=step))
