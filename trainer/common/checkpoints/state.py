"""The content of a checkpoint, captured from and restored to live objects."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trainer.common.checkpoints.content import check_tensors, described, named_tensors
from trainer.common.checkpoints.errors import CheckpointNotSaved, CheckpointRefused
from trainer.common.checkpoints.identity import optimizer_names
from trainer.common.checkpoints.rng import capture_rng, restore_rng


class Stateful(Protocol):
    """Anything that can be saved and restored: schedulers, gradient scalers."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Restore what `state_dict` returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """The live objects of one rank's training."""

    model: nn.Module
    """With or without its DDP wrapper; the wrapper does not appear in the names."""
    optimizer: Optimizer
    scheduler: Stateful | None = None
    extras: Mapping[str, Stateful] = field(default_factory=dict)
    """Further shared state by name, equal on all ranks: a gradient scaler, an averaged model."""
    updates_in: Callable[[Mapping[str, Any]], int] | None = None
    """Returns the number of updates in a sampler record; a save or load of a different step is then refused."""

    @property
    def module(self) -> nn.Module:
        """The model without its wrapper."""
        inner = self.model.module if isinstance(self.model, DistributedDataParallel) else self.model
        return cast(nn.Module, inner)

    @property
    def names(self) -> list[str]:
        """Names of the optimizer's parameters in its order."""
        return [name for group in optimizer_names(self.module, self.optimizer) for name in group]

    @property
    def device(self) -> torch.device:
        """Device of the first parameter."""
        return next(self.module.parameters()).device

    def shared(self) -> dict[str, Any]:
        """Return the state shared by all ranks; buffers are those of the calling rank, so rank 0's."""
        return {
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "extras": {name: item.state_dict() for name, item in self.extras.items()},
        }

    def own(self, rank: int, world_size: int, sampler: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of this rank only."""
        return {
            "rank": rank,
            "world_size": world_size,
            "rng": capture_rng(self.device),
            "buffers": self._buffers(),
            "sampler": dict(sampler),
        }

    def check_save(self, step: int, sampler: Mapping[str, Any]) -> None:
        """Raise CheckpointNotSaved if the sampler record is not that of `step`."""
        found = step if self.updates_in is None else self.updates_in(sampler)
        if found != step:
            raise CheckpointNotSaved(f"step {step}: the sampler is at update {found}")

    def check(self, shared: Mapping[str, Any], own: Mapping[str, Any], step: int, name: str) -> None:
        """Raise CheckpointRefused for unexpected or missing state, or a different type, shape or step."""
        _check_names(f"{name}: extras", "extras", shared["extras"], self.extras)
        _check_names(f"{name}: buffers", "buffers", own["buffers"], self._buffers())
        if (shared["scheduler"] is None) != (self.scheduler is None):
            where = (
                "here but not in the checkpoint" if shared["scheduler"] is None else "in the checkpoint but not here"
            )
            raise CheckpointRefused(f"{name}: there is a scheduler {where}", "scheduler")
        found = step if self.updates_in is None else self.updates_in(own["sampler"])
        if found != step:
            text = f"{name}: the sampler of rank {own['rank']} is at update {found}, the checkpoint is of step {step}"
            raise CheckpointRefused(text, "sampler")
        self._check_types(shared, own, name, "here")

    def _check_types(self, shared: Mapping[str, Any], own: Mapping[str, Any], name: str, when: str) -> None:
        """Compare stored with live state as far as it exists: an optimizer creates its state later."""
        live, names = self.shared(), self.names
        for theirs, ours in ((shared, live), ({"buffers": own["buffers"]}, {"buffers": self._buffers()})):
            stored, here = (described(named_tensors(side, names)) for side in (theirs, ours))
            check_tensors(stored, here, name, ("in the checkpoint", when), common=True)

    def restore(self, shared: Mapping[str, Any], own: Mapping[str, Any], name: str) -> None:
        """Restore everything; generators last, so that nothing draws between here and the next batch.

        Raises CheckpointRefused if a loader has converted its input: optimizers do so with state of a different type
        than the parameter's, which loses bits.
        """
        self.module.load_state_dict(shared["model"])
        buffers = self._buffers()
        for buffer, value in own["buffers"].items():
            buffers[buffer].copy_(value)
        self.optimizer.load_state_dict(shared["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(shared["scheduler"])
        for extra, item in self.extras.items():
            item.load_state_dict(shared["extras"][extra])
        self._check_types(shared, own, name, "after loading")
        restore_rng(own["rng"], self.device)

    def _buffers(self) -> dict[str, torch.Tensor]:
        return {name: buffer.detach() for name, buffer in self.module.named_buffers()}


def _check_names(text: str, field_name: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    missing, unknown = sorted(ours.keys() - theirs.keys()), sorted(theirs.keys() - ours.keys())
    if missing or unknown:
        raise CheckpointRefused(
            f"{text}: not in the checkpoint {missing}, in the checkpoint but not here {unknown}", field_name
        )
