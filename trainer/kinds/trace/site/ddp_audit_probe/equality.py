"""Digests of gradients, parameters and buffers at a few steps, the same on every rank, to be compared afterwards."""

from __future__ import annotations

from typing import Any

from . import digests
from .core import Core
from .models import Models

MOST_NAMES = 200


class Equality:
    """Writes what every rank should have alike."""

    def __init__(self, core: Core, models: Models) -> None:
        self.core, self.models = core, models

    def due(self, number: int, step: int) -> bool:
        """Return whether the ranks are compared at a step: at 1, 2, 3 and the powers of two."""
        return number == 0 and (step <= 3 or step & (step - 1) == 0)

    def _named(self, optimizer: Any) -> list[Any]:
        names: dict[int, str] = {}
        for model in list(self.core.models):
            for name, parameter in model.module.named_parameters():
                names[id(parameter)] = name
        found = []
        for place, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                found.append((names.get(id(parameter), f"group {place}, parameter {index}"), parameter))
        return found

    def look_at_gradients(self, optimizer: Any, number: int) -> None:
        """Write digests of the gradients that a step is about to use, if its step is due."""
        core, step = self.core, self.core.book(number).steps + 1
        if step == 1:
            self._look_for_unreduced(optimizer, number)
        if not self.due(number, step):
            return
        named = self._named(optimizer)
        # By the parameters, which all ranks have, not by the gradients, of which one may lack some.
        piece = digests.piece_at(step, digests.size(item for _, item in named))
        gradients = ((name, item.grad.detach()) for name, item in named if item.grad is not None)
        core.record(
            "digest",
            what="gradients",
            optimizer=number,
            step=step,
            piece=piece,
            values=digests.of_named(core.torch, gradients, piece),
        )

    def _look_for_unreduced(self, optimizer: Any, number: int) -> None:
        reduced = set().union(*self.models.reduced.values()) if self.models.reduced else set()
        missing = [
            name
            for name, item in self._named(optimizer)
            if item.grad is not None and reduced and id(item) not in reduced
        ]
        if missing:
            self.core.record("unreduced", optimizer=number, names=missing[:MOST_NAMES], count=len(missing))

    def look_at_parameters(self, number: int) -> None:
        """Write digests of the parameters that a step has left, if its step is due."""
        core = self.core
        step = core.book(number).steps
        if self.due(number, step):
            self.compare(step)

    def compare(self, step: int, *, last: bool = False) -> None:
        """Write digests of all parameters and buffers of the wrapped models; of large ones as a whole with the last."""
        core = self.core
        for model, number in list(core.models.items()):
            module = model.module
            for what, named in (("parameters", module.named_parameters), ("buffers", module.named_buffers)):
                tensors = [(name, item.detach()) for name, item in named()]
                sizes = 0 if last else digests.size(item for _, item in tensors)
                piece = digests.piece_at(step, sizes)
                values = digests.of_named(core.torch, tensors, piece)
                core.record("digest", what=what, model=number, step=step, last=last, piece=piece, values=values)
            tracked = {name: int(item) for name, item in module.named_buffers() if name.endswith("num_batches_tracked")}
            if tracked:
                forwards = core.counts.get(f"forwards of model {number}", 0)
                core.record("tracked", model=number, step=step, forwards=forwards, values=tracked)
