"""Calls the members of a target and checks what they return; every fault names member, rank and step."""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from trainer.contract.targets import TARGET_NAME

REQUIRED: Final = ("build_model", "window", "loss_sum", "count", "accumulate")
OPTIONAL: Final = ("wrap", "extra_loss", "padding_count", "padding_loss_sum", "param_groups", "optimizer", "sample_ids")
REDUCTIONS: Final = ("mean", "sum")
PASSED_ON: Final = re.compile(r"OutOfMemoryError|DistNetworkError|DistBackendError|TargetFault")
"""Exceptions that are not the target's own."""
DEFAULT_UNIT: Final = "unit"
MOST_TEXT: Final = 400


class TargetFault(RuntimeError):
    """A target does not do what a target must do; the text names the member, the rank and what was expected."""


class TargetNotFoundError(TargetFault):
    """No usable target has the requested name."""


class Target:
    """A registered target whose members are checked at every call."""

    def __init__(self, name: str, member: Any) -> None:
        """Raises TargetFault for a member that is missing, or that is not what it must be."""
        self.name = name
        self._object = member
        problem = shape_problem(member)
        if problem:
            raise TargetFault(f"target {name!r}: {problem}")
        self.unit = str(getattr(member, "unit", DEFAULT_UNIT))
        self.extra_reduction = str(getattr(member, "extra_reduction", "mean"))
        self.per_batch_statistics = bool(getattr(member, "per_batch_statistics", False))

    def has(self, member: str) -> bool:
        """Return whether the target has an optional member."""
        return getattr(self._object, member, None) is not None

    def build_model(self, rank: int = 0) -> nn.Module:
        """Return a new model."""
        found = self._call("build_model", rank, None)
        if not isinstance(found, nn.Module):
            raise self._fault("build_model", rank, None, f"returned {_kind(found)}; expected a torch.nn.Module")
        if not any(parameter.requires_grad for parameter in found.parameters()):
            raise self._fault(
                "build_model", rank, None, "returned a model without a parameter that requires a gradient"
            )
        return found

    def window(self, step: int, rank: int, world_size: int) -> list[Any]:
        """Return the micro-batches of one rank in one step: at least one."""
        found = self._call("window", rank, step, step, rank, world_size)
        if isinstance(found, str | bytes | dict | Tensor) or not isinstance(found, Sequence):
            raise self._fault("window", rank, step, f"returned {_kind(found)}; expected a list of micro-batches")
        if not found:
            raise self._fault(
                "window", rank, step, "returned no micro-batch; a rank without data gives one that count() counts as 0"
            )
        return list(found)

    def count(self, batch: Any, *, rank: int, step: int) -> float:
        """Return the units of a micro-batch: a finite number, not negative."""
        return self._number("count", batch, rank, step)

    def padding_count(self, batch: Any, *, rank: int, step: int) -> float:
        """Return the padding units of a micro-batch, 0 if the target does not say."""
        return self._number("padding_count", batch, rank, step) if self.has("padding_count") else 0.0

    def sample_ids(self, batch: Any, *, rank: int, step: int) -> list[str]:
        """Return the ids of the samples of a micro-batch as text."""
        found = self._call("sample_ids", rank, step, batch)
        found = found.tolist() if isinstance(found, Tensor) else found
        if isinstance(found, str | bytes) or not isinstance(found, Sequence):
            raise self._fault("sample_ids", rank, step, f"returned {_kind(found)}; expected a list of ids")
        return [str(item) for item in found]

    def loss(self, member: str, model: nn.Module, batch: Any, *, rank: int, step: int) -> Tensor:
        """Return `loss_sum`, `extra_loss` or `padding_loss_sum` of a micro-batch: a finite scalar tensor."""
        found = self._call(member, rank, step, model, batch)
        if not isinstance(found, Tensor):
            raise self._fault(member, rank, step, f"returned {_kind(found)}; expected a scalar tensor")
        if found.numel() != 1:
            shape = tuple(found.shape)
            raise self._fault(member, rank, step, f"returned a tensor of shape {shape}; expected a scalar: add it up")
        if not bool(torch.isfinite(found.detach()).all()):
            raise self._fault(member, rank, step, f"returned {found.item()}; expected a finite number")
        return found.reshape(())

    def accumulate(self, model: nn.Module, batches: Sequence[Any], context: Any) -> float | None:
        """Run the code under audit, and return the loss it reports, None if it reports none."""
        found = self._call("accumulate", context.rank, context.step, model, batches, context)
        if found is None:
            return None
        value = found.detach().item() if isinstance(found, Tensor) and found.numel() == 1 else found
        if isinstance(value, bool) or not isinstance(value, int | float):
            text = f"returned {_kind(found)}; expected nothing, or the loss of the window as a number"
            raise self._fault("accumulate", context.rank, context.step, text)
        return float(value)

    def wrap(self, model: nn.Module, context: Any) -> nn.Module:
        """Return what `accumulate` gets as its model."""
        found = self._call("wrap", context.rank, None, model, context)
        if not isinstance(found, nn.Module):
            raise self._fault("wrap", context.rank, None, f"returned {_kind(found)}; expected a torch.nn.Module")
        return found

    def optimizer(self, model: nn.Module, rank: int) -> torch.optim.Optimizer:
        """Return the optimizer of which one step is compared."""
        found = self._call("optimizer", rank, None, model)
        if not isinstance(found, torch.optim.Optimizer):
            raise self._fault("optimizer", rank, None, f"returned {_kind(found)}; expected a torch.optim.Optimizer")
        return found

    def learning_rates(self, model: nn.Module, rank: int, usual: float) -> dict[str, float]:
        """Return the learning rate of every parameter by name: `usual`, or that of its group, 0 in no group."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        if not self.has("param_groups"):
            return dict.fromkeys(names.values(), usual)
        groups = self._call("param_groups", rank, None, model)
        found = dict.fromkeys(names.values(), 0.0)
        try:
            for group in groups:
                rate = float(group.get("lr", usual))
                found.update({names[id(parameter)]: rate for parameter in group["params"]})
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            text = f"returned something else than groups of the model's parameters ({type(error).__name__}: {error})"
            raise self._fault("param_groups", rank, None, f"{text}; expected [{{'params': …, 'lr': …}}, …]") from error
        return found

    def _number(self, member: str, batch: Any, rank: int, step: int) -> float:
        found = self._call(member, rank, step, batch)
        value = found.item() if isinstance(found, Tensor) and found.numel() == 1 else found
        if isinstance(value, bool) or not hasattr(value, "__float__"):
            raise self._fault(member, rank, step, f"returned {_kind(found)}; expected a number")
        number = float(value)
        if not math.isfinite(number) or number < 0:
            raise self._fault(member, rank, step, f"returned {number:g}; expected a finite number of at least 0")
        return number

    def _call(self, member: str, rank: int, step: int | None, *arguments: Any) -> Any:
        with self.guarded(member, rank, step):
            return getattr(self._object, member)(*arguments)

    @contextmanager
    def guarded(self, member: str, rank: int, step: int | None) -> Iterator[None]:
        """Turn an exception of the target's own code into a TargetFault."""
        try:
            yield
        except Exception as error:
            if any(PASSED_ON.search(cls.__name__) for cls in type(error).__mro__):
                raise
            first = (str(error).strip().splitlines() or [""])[0][:MOST_TEXT]
            raise self._fault(member, rank, step, f"raised {type(error).__name__}: {first}") from error

    def _fault(self, member: str, rank: int, step: int | None, text: str) -> TargetFault:
        return TargetFault(fault_text(self.name, member, text, rank=rank, step=step))


def fault_text(name: str, member: str, text: str, *, rank: int | None = None, step: int | None = None) -> str:
    """Return the sentence about a fault of a target."""
    places = [] if rank is None else [f"on rank {rank}"]
    places += [] if step is None else [f"in step {step}"]
    return f"target {name!r}, member {member}{' ' if places else ''}{' '.join(places)}: {text}"


def shape_problem(target: Any) -> str:
    """Return what is wrong with the members of a target, before any of them is called; empty if nothing is."""
    name = getattr(target, "name", None)
    if not isinstance(name, str) or not TARGET_NAME.fullmatch(name):
        return f"name must be text that matches {TARGET_NAME.pattern}, found {_kind(name)}"
    missing = [member for member in REQUIRED if getattr(target, member, None) is None]
    if missing:
        return f"lacks {', '.join(missing)}; a target needs name, {', '.join(REQUIRED)}"
    present = [member for member in (*REQUIRED, *OPTIONAL) if getattr(target, member, None) is not None]
    dead = [member for member in present if not callable(getattr(target, member))]
    if dead:
        return f"{', '.join(dead)} must be a method, found {_kind(getattr(target, dead[0]))}"
    reduction = getattr(target, "extra_reduction", "mean")
    if reduction not in REDUCTIONS:
        return f"extra_reduction must be mean or sum, found {str(reduction)[:40]!r}"
    if not isinstance(getattr(target, "unit", DEFAULT_UNIT), str):
        return f"unit must be text such as token, found {_kind(target.unit)}"
    return ""


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return (
        f"{type(value).__name__} {str(value)[:60]!r}" if isinstance(value, str | int | float) else type(value).__name__
    )
