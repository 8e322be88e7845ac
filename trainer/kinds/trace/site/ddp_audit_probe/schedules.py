"""Steps of learning rate schedulers, and how many of them fall between the backward passes of a window."""

from __future__ import annotations

from typing import Any, Callable

from .core import Core
from .guard import replace


class Schedules:
    """Counts the steps of every scheduler by its optimizer."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._depth = 0

    def install(self) -> None:
        """Wrap `step` of torch's schedulers, where a class has its own."""
        module = self.core.torch.optim.lr_scheduler
        for value in list(vars(module).values()):
            if isinstance(value, type) and "step" in vars(value):
                replace(value, "step", self._step)
            if isinstance(value, type) and "_initial_step" in vars(value):
                replace(value, "_initial_step", self._quiet)

    def _step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        core = self.core

        def step(scheduler: Any, *arguments: Any, **options: Any) -> Any:
            if core.mine and not self._depth:
                core.guard.run("schedules", self._count, scheduler)
            return self._inside(original, scheduler, *arguments, **options)

        return step

    def _quiet(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the first step of a scheduler, which it makes itself when it is created."""

        def quiet(scheduler: Any, *arguments: Any, **options: Any) -> Any:
            return self._inside(original, scheduler, *arguments, **options)

        return quiet

    def _inside(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self._depth += 1  # schedulers of schedulers step those inside them
        try:
            return original(*arguments, **options)
        finally:
            self._depth -= 1

    def _count(self, scheduler: Any) -> None:
        core, optimizer = self.core, getattr(scheduler, "optimizer", None)
        number = None if optimizer is None else core.optimizers.get(optimizer)
        if number is None:
            return
        core.count(f"scheduler steps of optimizer {number}")
        if core.book(number).window.cells:
            core.count(f"scheduler steps in open windows of optimizer {number}")
