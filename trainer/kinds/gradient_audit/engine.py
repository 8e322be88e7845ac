"""The target's model on one rank, wrapped as its loop wraps it: runs its windows, reads gradients, sets parameters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.common.distributed import Group
from trainer.forensics.words import listed
from trainer.kinds.gradient_audit.changes import Changes
from trainer.kinds.gradient_audit.counting import Passes
from trainer.targets.members import Target, TargetFault, fault_text

Keep = Callable[[str, Tensor], Tensor]
"""Turns the gradient of a parameter, by its name, into what is kept of it."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """The argument `ctx` of a target's `accumulate` and `wrap`."""

    rank: int
    world_size: int
    device: torch.device
    step: int
    group: Group

    def all_reduce_sum(self, number: Any) -> Any:
        """Return the sum over ranks of a number: an int of ints, else a float; every rank must call this."""
        value = number.item() if isinstance(number, Tensor) else number
        if isinstance(value, int):
            return self.group.sum_integers([value], "all_reduce_sum of the target")[0]
        return self.group.sum_floats([float(value)], "all_reduce_sum of the target")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What one call of `accumulate` left on this rank."""

    gradients: Mapping[str, Tensor]
    """Whole gradients on the CPU, by parameter; zeros where `missing`."""
    missing: list[str]
    """Parameters without any gradient."""
    backwards: int
    reductions: list[int] | None
    """Backward passes with which a reduction ended; None where reductions cannot be seen."""
    loss: float | None
    """The loss that `accumulate` returned."""
    changes: list[tuple[float | None, float]]
    """What followed each backward pass, as `Changes` says it; empty if it was not watched."""


class Engine:
    """One rank's model, as built by the target, loaded with the common state, wrapped."""

    def __init__(self, target: Target, group: Group, state: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        """Collective. Raises TargetFault."""
        self.target, self.group, self.dtype = target, group, dtype
        self.model = fresh_model(target, group, state, dtype)
        self.names = [name for name, _ in self.model.named_parameters()]
        self.trained = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        self.passes = Passes(group.telemetry)
        self.wrapped = self._wrap()
        self.passes.attach(self.wrapped)
        found = [name for name, _ in self.model.named_parameters()]
        if found != self.names:
            odd = sorted(set(found) ^ set(self.names))
            text = f"changed the names of parameters ({', '.join(odd[:3])}); expected those of build_model"
            raise TargetFault(fault_text(target.name, "wrap", text, rank=group.rank))

    @property
    def is_ddp(self) -> bool:
        """Whether gradients are reduced by DDP."""
        return self.passes.hooked is not None

    @property
    def sharded(self) -> bool:
        """Whether parameters are shards."""
        return any(hasattr(parameter, "full_tensor") for parameter in self.model.parameters())

    def context(self, step: int) -> Context:
        """Return the target's view of a step."""
        rank, size = self.group.rank, self.group.world_size
        return Context(rank=rank, world_size=size, device=self.group.device, step=step, group=self.group)

    def run(self, batches: Sequence[Any], step: int, keep: Keep | None = None) -> Observed:
        """Run the code under audit and return what it left, as `keep` reduces it. Collective. Raises TargetFault."""
        before = self._bits()
        self.passes.begin()
        self.group.telemetry.phase("accumulate", step)
        with self.passes.watching():
            loss = self.target.accumulate(self.wrapped, list(batches), self.context(step))
        self.passes.finish()
        self._check_participants(step)
        self._check_reduction(step)
        if self._bits() != before:
            text = "changed the parameters; it must stop just before optimizer.step()"
            raise TargetFault(fault_text(self.target.name, "accumulate", text, rank=self.group.rank, step=step))
        self.group.telemetry.mark("read-gradients", step)
        gradients, missing = self.gradients(keep or self._copied)
        return Observed(
            gradients=gradients,
            missing=missing,
            backwards=self.passes.backwards,
            reductions=list(self.passes.reductions) if self.passes.counter is not None else None,
            loss=loss,
            changes=list(self.passes.changes.found) if self.passes.changes is not None else [],
        )

    def watch_changes(self) -> None:
        """Watch what the code under audit does to gradients after each backward pass; not possible for shards."""
        if not self.sharded:
            self.passes.changes = Changes(self.model.parameters(), self.dtype)

    def gradients(self, keep: Keep) -> tuple[dict[str, Tensor], list[str]]:
        """Return every trained parameter's whole gradient, and which have none. Collective if sharded."""
        found, missing = {}, []
        for name, parameter in self.model.named_parameters():
            if name not in self.trained:
                continue
            if parameter.grad is None:
                missing.append(name)
                found[name] = keep(name, torch.zeros(parameter.shape, dtype=self.dtype))
            else:
                found[name] = keep(name, whole(parameter.grad))
        return found, missing

    def _copied(self, _name: str, gradient: Tensor) -> Tensor:
        return gradient.to(device="cpu", dtype=self.dtype, copy=True)

    def buffers(self) -> dict[str, Tensor]:
        """Return a copy of every buffer that is part of the model's state."""
        kept = self.model.state_dict().keys()
        return {name: whole(value).detach().cpu().clone() for name, value in self.model.named_buffers() if name in kept}

    def step(self, gradient: Mapping[str, Tensor], rates: Mapping[str, float]) -> None:
        """Subtract `rates` times `gradient` from the parameters; gradients stay as they are."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name in gradient:
                    update = gradient[name].to(device=self.group.device, dtype=self.dtype) * rates[name]
                    parameter.sub_(like(update, parameter))

    def give_gradients(self, gradient: Mapping[str, Tensor]) -> None:
        """Replace every gradient by `gradient`."""
        for name, parameter in self.model.named_parameters():
            if name in gradient:
                given = gradient[name].to(device=self.group.device, dtype=self.dtype)
                parameter.grad = like(given, parameter)

    def _wrap(self) -> nn.Module:
        with self.group.telemetry.collective("wrap the model"):  # compares shapes and copies rank 0's weights
            if self.target.has("wrap"):
                with self.passes.watching():
                    return self.target.wrap(self.model, self.context(0))
            devices = [self.group.device.index] if self.group.device.type == "cuda" else None
            return DistributedDataParallel(self.model, device_ids=devices)

    def _bits(self) -> list[int]:
        return [bits(parameter) for parameter in self.model.parameters()]

    def _check_participants(self, step: int) -> None:
        size = dist.get_world_size() if dist.is_initialized() else 0
        if size != self.group.world_size:
            text = f"changed the number of participants from {self.group.world_size} to {size}; it must stay the same"
            raise TargetFault(fault_text(self.target.name, "accumulate", text, rank=self.group.rank, step=step))

    def _check_reduction(self, step: int) -> None:
        # Before this rank enters its own collective, while the others still wait in that of DDP.
        missing = [] if self.passes.arrivals is None else self.passes.arrivals.missing
        if missing:
            text = (
                f"left DDP's reduction unfinished, and other ranks wait for it: no gradient reached {listed(missing)} "
                "in the backward pass that synchronises; use these parameters in the last micro-batch of every rank, "
                "or wrap with find_unused_parameters=True"
            )
            raise TargetFault(fault_text(self.target.name, "accumulate", text, rank=self.group.rank, step=step))


def fresh_model(target: Target, group: Group, state: Mapping[str, Tensor], dtype: torch.dtype) -> nn.Module:
    """Return a new model of the target with the given parameters and buffers. Raises TargetFault."""
    model = target.build_model(group.rank).to(device=group.device, dtype=dtype)
    load(target, model, state, group.rank)
    return model


def load(target: Target, model: nn.Module, state: Mapping[str, Tensor], rank: int) -> None:
    """Set parameters and buffers of an unwrapped model. Raises TargetFault if names or shapes differ."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    odd = [name for name in (own.keys() | state.keys()) if name not in own or name not in state]
    odd += [name for name in own.keys() & state.keys() if own[name].shape != state[name].shape]
    if odd:
        text = (
            f"differs from rank 0's model in {', '.join(sorted(odd)[:3])}; expected the same names and shapes each time"
        )
        raise TargetFault(fault_text(target.name, "build_model", text, rank=rank))
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(state[name])


def whole(value: Tensor) -> Tensor:
    """Return a tensor with all its shards. Collective for a sharded one."""
    gathered: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return gathered.detach()


def like(value: Tensor, parameter: Tensor) -> Tensor:
    """Return a whole tensor in the form of a parameter: itself, or its shards. Collective for a sharded one."""
    if not hasattr(parameter, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, parameter.device_mesh, parameter.placements)  # type: ignore[attr-defined]


def bits(value: Tensor) -> int:
    """Return a number that depends on every bit of this rank's part of a tensor."""
    local: Tensor = value.to_local() if hasattr(value, "to_local") else value
    flat = local.detach().reshape(-1)
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(flat.element_size(), torch.uint8)
    words = flat.view(kind).to(torch.int64)
    return int((words * torch.arange(1, 2 * words.numel(), 2, device=words.device)).sum()) if words.numel() else 0
