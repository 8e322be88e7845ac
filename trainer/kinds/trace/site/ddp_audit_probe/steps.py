"""Backward passes, steps of optimizers and clearing of gradients: what makes windows out of micro-batches."""

from __future__ import annotations

import sys
import time
import weakref
from typing import Any, Callable

from .core import Core
from .equality import Equality
from .guard import replace
from .models import Models
from .windows import Cell

MOST_OPTIMIZERS = 256
"""In one process; more, as in a search over many trainings, are only counted."""
WATCHED = 3
"""Parameters of each optimizer that tell whether a backward reached it: the first, the middle and the last."""
ADAPTIVE = ("Adam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "Adafactor", "Lion", "LAMB", "NovoGrad", "Muon")
"""Optimizers whose step hardly depends on the size of all gradients together."""


class Steps:
    """Watches autograd and the optimizers."""

    def __init__(self, core: Core, models: Models) -> None:
        self.core, self.models = core, models
        self.equality = Equality(core, models)
        self._watched: dict[int, list[weakref.ref[Any]]] = {}
        self._hooks: list[Any] = []
        self._stepping: dict[int, float] = {}

    def install(self) -> None:
        """Wrap backward, clearing and clipping; register the hooks of all optimizers."""
        torch = self.core.torch
        replace(torch.autograd, "backward", self._backward)
        optimizer = torch.optim.Optimizer
        replace(optimizer, "__init__", self._optimizer_init)
        replace(optimizer, "add_param_group", self._add_param_group)
        replace(optimizer, "zero_grad", self._optimizer_zero_grad)
        replace(torch.nn.Module, "zero_grad", self._module_zero_grad)
        hooks = sys.modules["torch.optim.optimizer"]
        guard = self.core.guard
        self._hooks = [
            hooks.register_optimizer_step_pre_hook(guard.wrapped("steps", self._before_step)),
            hooks.register_optimizer_step_post_hook(guard.wrapped("steps", self._after_step)),
        ]

    def _backward(self, original: Callable[..., None]) -> Callable[..., None]:
        core = self.core

        def backward(*arguments: Any, **options: Any) -> None:
            if not core.mine or core.cell is not None:  # a backward inside a backward belongs to the outer one
                original(*arguments, **options)
                return
            core.guard.run("backward", self._begin_backward)
            try:
                original(*arguments, **options)
            finally:
                core.guard.run("backward", self._end_backward)

        return backward

    def _begin_backward(self) -> None:
        core = self.core
        for number, book in core.books.items():
            if book.window.cells and self._without_gradients(number):
                book.cleared()
        cell = Cell(core.forward_span, time.time())
        cell.models = sorted(core.forwarded)
        cell.forwards = core.forwards
        cell.wanted = [
            any(core.forward_sync.get(number, False) for number in cell.models),
            self.models.wants_sync(cell.models),
        ]
        cell.place = core.site("backward", 4)
        cell.scale, cell.rows = core.scale, core.rows
        core.forwarded, core.forward_span, core.forwards, core.scale, core.rows = set(), None, 0, None, None
        core.cell = cell
        core.mark("backward")

    def _without_gradients(self, number: int) -> bool:
        """Return whether no watched parameter of an optimizer holds a gradient."""
        watched = [
            parameter for parameter in (held() for held in self._watched.get(number, ())) if parameter is not None
        ]
        return bool(watched) and all(parameter.grad is None for parameter in watched)

    def _end_backward(self) -> None:
        core, cell = self.core, self.core.cell
        core.cell = None
        if cell is None:
            return
        cell.backward[1] = time.time()
        core.count("backwards")
        if not cell.losses:
            core.miss("backward without a loss that was seen")
        for number in cell.optimizers:
            core.book(number).add(cell)
        if not cell.optimizers:
            core.miss("backward that reached no optimizer")
        core.mark("between")

    def _optimizer_init(self, original: Callable[..., None]) -> Callable[..., None]:
        core = self.core

        def init(optimizer: Any, *arguments: Any, **options: Any) -> None:
            original(optimizer, *arguments, **options)
            if core.mine:
                core.guard.run("steps", self._know, optimizer)

        return init

    def _add_param_group(self, original: Callable[..., None]) -> Callable[..., None]:
        core = self.core

        def add(optimizer: Any, *arguments: Any, **options: Any) -> None:
            original(optimizer, *arguments, **options)
            if core.mine and optimizer in core.optimizers:
                core.guard.run("steps", self._watch, optimizer, core.optimizers[optimizer])

        return add

    def _know(self, optimizer: Any) -> int | None:
        core = self.core
        if optimizer in core.optimizers:
            return core.optimizers[optimizer]
        if not getattr(optimizer, "param_groups", None):
            return None
        if len(self._watched) >= MOST_OPTIMIZERS:
            core.miss("optimizer beyond the most that are watched")
            return None
        number = core.optimizers[optimizer] = core.number("optimizer")
        name = type(optimizer).__name__
        core.record(
            "optimizer",
            optimizer=number,
            name=name,
            adaptive=any(part in name for part in ADAPTIVE),
            site=core.site("optimizer", 4),
            elements=sum(item.numel() for group in optimizer.param_groups for item in group["params"]),
            sharded=any(
                type(item).__name__ == "DTensor" for group in optimizer.param_groups for item in group["params"]
            ),
        )
        self._watch(optimizer, number)
        return number

    def _watch(self, optimizer: Any, number: int) -> None:
        core = self.core
        parameters = [item for group in optimizer.param_groups for item in group["params"] if item.requires_grad]
        if not parameters:
            return
        chosen = {0, len(parameters) // 2, len(parameters) - 1}
        watched = self._watched.setdefault(number, [])
        known = {id(held()) for held in watched}
        for index in sorted(chosen)[:WATCHED]:
            parameter = parameters[index]
            if id(parameter) in known:
                continue
            watched.append(weakref.ref(parameter))

            def arrived(_parameter: Any, number: int = number) -> None:
                cell = core.cell
                if cell is not None and number not in cell.optimizers:
                    cell.optimizers.append(number)

            hook = parameter.register_post_accumulate_grad_hook(core.guard.wrapped("steps", arrived))
            # Else each new optimizer of one model would slow its backward.
            weakref.finalize(optimizer, hook.remove).atexit = False

    def _before_step(self, optimizer: Any, arguments: Any, options: dict[str, Any]) -> Any:
        core = self.core
        number = core.optimizers.get(optimizer)
        if number is None:
            number = self._know(optimizer)
        if number is None or not core.mine:
            return None
        self._stepping[number] = time.time()
        closure = arguments[1] if len(arguments) > 1 else options.get("closure")
        if closure is None:
            core.guard.run("digests", self.equality.look_at_gradients, optimizer, number)
            return None

        def looked_at(*given: Any, **more: Any) -> Any:
            value = closure(*given, **more)
            core.guard.run("digests", self.equality.look_at_gradients, optimizer, number)
            return value

        if len(arguments) > 1:
            return (arguments[0], looked_at, *arguments[2:]), options
        return arguments, {**options, "closure": looked_at}

    def _after_step(self, optimizer: Any, _arguments: Any, _options: Any) -> None:
        number = self.core.optimizers.get(optimizer)
        if number is not None and self.core.mine:
            self.close(number, skipped=False)

    def close(self, number: int, *, skipped: bool) -> None:
        """Close the window of an optimizer at the end of its step, or of a step that a scaler left out."""
        core = self.core
        book = core.book(number)
        at = [self._stepping.pop(number, time.time()), time.time()]
        window, looked_at = book.close(at, skipped=skipped)
        if skipped:
            core.record("skipped", optimizer=number, step=book.steps, micro_batches=len(window.cells))
            return
        values: dict[str, Any] = {}
        if looked_at:
            core.closed(number, book.steps, window, at, why="first" if book.steps <= book.first else "sample")
            losses = [loss.read().get("value") for cell in window.cells for loss in cell.losses]
            known = [value for value in losses if isinstance(value, float)]
            if known:
                values["loss of a micro-batch"] = sum(known) / len(known)
            core.guard.run("digests", self.equality.look_at_parameters, number)
        core.step(book.steps, values)

    def _optimizer_zero_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        core = self.core

        def zero_grad(optimizer: Any, *arguments: Any, **options: Any) -> Any:
            if core.mine and optimizer in core.optimizers:
                core.guard.run("steps", lambda: core.book(core.optimizers[optimizer]).cleared())
            return original(optimizer, *arguments, **options)

        return zero_grad

    def _module_zero_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        core = self.core

        def zero_grad(module: Any, *arguments: Any, **options: Any) -> Any:
            if core.mine:
                core.guard.run("steps", self._module_cleared, module)
            return original(module, *arguments, **options)

        return zero_grad

    def _module_cleared(self, module: Any) -> None:
        open_books = [book for book in self.core.books.values() if book.window.cells]
        if not open_books:  # as after a step: going through a large model's parameters takes time
            return
        cleared = {id(parameter) for parameter in module.parameters()}
        for book in open_books:
            watched = self._watched.get(book.number)
            if watched and all(id(held()) in cleared for held in watched):
                book.cleared()
