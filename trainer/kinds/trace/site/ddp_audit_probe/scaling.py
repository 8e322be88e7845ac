"""Clipping of gradients, and the scaling of losses for float16."""

from __future__ import annotations

from typing import Any, Callable

from .core import Core
from .guard import replace
from .steps import Steps


class Scaling:
    """Watches `GradScaler` and the functions that clip."""

    def __init__(self, core: Core, steps: Steps) -> None:
        self.core, self.steps = core, steps
        self._unscaled: dict[int, bool] = {}
        """Optimizers whose gradients were unscaled in the open window."""

    def install(self) -> None:
        """Wrap them."""
        torch = self.core.torch
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            clip = getattr(torch.nn.utils, name, None)
            replace(torch.nn.utils.clip_grad, name, self._clip)
            if clip is not None:
                setattr(torch.nn.utils, name, getattr(torch.nn.utils.clip_grad, name))
        for scaler in self._scaler_classes():
            replace(scaler, "scale", self._scaler_scale)
            replace(scaler, "unscale_", self._scaler_unscale)
            replace(scaler, "step", self._scaler_step)

    def _scaler_classes(self) -> list[Any]:
        torch = self.core.torch
        found: list[Any] = []
        for owner in (getattr(torch, "amp", None), getattr(torch.cuda, "amp", None)):
            scaler = getattr(owner, "GradScaler", None)
            # A subclass calls its base; wrapping both would count twice.
            if scaler is not None and not any(issubclass(scaler, other) for other in found):
                found.append(scaler)
        return found

    def _clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        core = self.core

        def clip(*arguments: Any, **options: Any) -> Any:
            if core.mine:
                core.guard.run("steps", lambda: self._clipped(core.site("clip", 4)))
            return original(*arguments, **options)

        return clip

    def _clipped(self, site: int) -> None:
        core = self.core
        scaled = any(cell.scale is not None for book in core.books.values() for cell in book.window.cells)
        for number, book in core.books.items():
            if book.window.cells:
                still = scaled and number not in self._unscaled
                book.window.clip = {"site": site, "before_unscale": still, "after": len(book.window.cells)}

    def _scaler_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        core = self.core

        def scale(scaler: Any, outputs: Any) -> Any:
            if core.mine and scaler.is_enabled():
                core.guard.run("scaling", self._scaled, scaler)
            return original(scaler, outputs)

        return scale

    def _scaled(self, scaler: Any) -> None:
        # As a tensor where that is possible: reading it would make a GPU wait.
        ask = getattr(scaler, "_get_scale_async", None)
        scale = ask() if ask is not None else None
        self.core.scale = float(scaler.get_scale()) if scale is None else scale.detach().clone()

    def _scaler_unscale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        core = self.core

        def unscale(scaler: Any, optimizer: Any) -> Any:
            number = core.optimizers.get(optimizer)
            if core.mine and number is not None:
                self._unscaled[number] = True
            return original(scaler, optimizer)

        return unscale

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        core = self.core

        def step(scaler: Any, optimizer: Any, *arguments: Any, **options: Any) -> Any:
            number = core.optimizers.get(optimizer)
            before = core.book(number).steps if number is not None else 0
            value = original(scaler, optimizer, *arguments, **options)
            if core.mine and number is not None:
                self._unscaled.pop(number, None)
                if core.book(number).steps == before and core.book(number).window.cells:
                    core.guard.run("steps", self._skip, number)
            return value

        return step

    def _skip(self, number: int) -> None:
        self.steps.close(number, skipped=True)
