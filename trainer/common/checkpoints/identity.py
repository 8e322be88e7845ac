"""The identity of a training: what must agree between a checkpoint and the training that continues from it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from trainer.common.checkpoints.errors import CheckpointRefused
from trainer.common.context import StageContext
from trainer.contract.manifest import Header, ParameterEntry

ALWAYS_FREE: Final = frozenset({"device", "share_gpu", "save_every", "world_size"})
"""Parameters that do not shape a trajectory (`world_size` and the device type are compared separately)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of a training for its checkpoints."""

    kind: str
    config: Mapping[str, Any]
    """Complete parameters of the run, and `device_type`."""
    data_lock: str
    world_size: int
    free: frozenset[str] = ALWAYS_FREE
    """Fields of `config` that may differ: where to stop, how often to save."""

    @classmethod
    def of(cls, context: StageContext, data_lock: str, *, free: frozenset[str] = frozenset()) -> "Identity":
        """Return the identity of a run's training; `free` names parameters that only say where to stop."""
        return cls(
            kind=context.kind.name,
            config={**context.params.model_dump(mode="json"), "device_type": context.config.device},
            data_lock=data_lock,
            world_size=context.world_size,
            free=ALWAYS_FREE | free,
        )

    @property
    def lock(self) -> str:
        """Digest of everything that must agree; a file with a different digest is of another training."""
        shaping = {name: value for name, value in self.config.items() if name not in self.free}
        text = json.dumps([self.kind, shaping, self.world_size, self.data_lock], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def check(self, header: Header, name: str) -> None:
        """Raise CheckpointRefused naming the first field in which checkpoint `name` differs from this training."""
        self._same(name, "kind", header.kind, self.kind)
        for field in sorted((header.config.keys() | self.config.keys()) - self.free):
            self._same(name, f"config.{field}", header.config.get(field), self.config.get(field))
        self._same(name, "world_size", header.world_size, self.world_size)
        self._same(name, "data_lock", header.data_lock, self.data_lock)

    @staticmethod
    def _same(name: str, field: str, theirs: Any, ours: Any) -> None:
        if theirs != ours:
            raise CheckpointRefused(
                f"{name} belongs to another training: {field} is {theirs!r} in the checkpoint and {ours!r} here", field
            )


def parameter_entries(model: nn.Module) -> list[ParameterEntry]:
    """Return name, shape and type of every parameter in the model's order."""
    return [
        ParameterEntry(name=name, shape=list(parameter.shape), dtype=str(parameter.dtype).removeprefix("torch."))
        for name, parameter in model.named_parameters()
    ]


def optimizer_names(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """Return the parameter names of every group in the optimizer's order.

    Raises ValueError for a parameter that is not in the model: it could not be found again after a restart.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups: list[list[str]] = []
    for index, group in enumerate(optimizer.param_groups):
        members: list[torch.Tensor] = group["params"]
        if any(id(member) not in names for member in members):
            raise ValueError(f"optimizer group {index} contains a parameter that the model does not name")
        groups.append([names[id(member)] for member in members])
    return groups


def check_parameters(header: Header, model: nn.Module, optimizer: Optimizer, name: str) -> None:
    """Raise CheckpointRefused if parameter names, shapes, types or order differ, in model or optimizer."""
    theirs = [f"{entry.name} {entry.dtype}{entry.shape}" for entry in header.parameters]
    ours = [f"{entry.name} {entry.dtype}{entry.shape}" for entry in parameter_entries(model)]
    _check_order("parameters", theirs, ours, name)
    groups = optimizer_names(model, optimizer)
    if len(header.optimizer) != len(groups):
        text = (
            f"{name}: optimizer has {len(header.optimizer)} parameter groups in the checkpoint and {len(groups)} here"
        )
        raise CheckpointRefused(text, "optimizer")
    for index, (saved, current) in enumerate(zip(header.optimizer, groups, strict=True)):
        _check_order(f"optimizer.group{index}", saved, current, name)


def _check_order(field: str, theirs: list[str], ours: list[str], name: str) -> None:
    if theirs == ours:
        return
    missing, extra = sorted(set(theirs) - set(ours)), sorted(set(ours) - set(theirs))
    if missing or extra:
        detail = f"only in the checkpoint: {', '.join(missing) or 'none'}; only here: {', '.join(extra) or 'none'}"
    else:
        place = next(index for index, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b)
        detail = (
            f"same names in another order: position {place} is {theirs[place]} in the checkpoint and {ours[place]} here"
        )
    raise CheckpointRefused(f"{name}: {field} differ ({detail})", field)
