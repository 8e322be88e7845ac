"""Losses: how many units each call counts, how it reduces them, and by which factor the script scales it.

A hook on the loss receives the gradient that arrives there: exactly that factor, whatever the script divided or
multiplied by, and wherever.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from .core import Core
from .guard import replace
from .windows import Loss

CLASSES = ("cross_entropy", "nll_loss")
"""Losses over class numbers, with `ignore_index` and class weights."""
ELEMENTWISE = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "soft_margin_loss",
    "poisson_nll_loss",
    "gaussian_nll_loss",
)
"""Losses over elements; a unit is one element."""
PER_SAMPLE = (
    "kl_div",
    "ctc_loss",
    "margin_ranking_loss",
    "hinge_embedding_loss",
    "cosine_embedding_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
)
"""Losses that are noted with one unit per element of what they would return unreduced, as far as that is known."""
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "cross_entropy": (
        "input",
        "target",
        "weight",
        "size_average",
        "ignore_index",
        "reduce",
        "reduction",
        "label_smoothing",
    ),
    "nll_loss": ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction"),
    "binary_cross_entropy": ("input", "target", "weight", "size_average", "reduce", "reduction"),
    "binary_cross_entropy_with_logits": ("input", "target", "weight", "size_average", "reduce", "reduction"),
    "mse_loss": ("input", "target", "size_average", "reduce", "reduction"),
    "l1_loss": ("input", "target", "size_average", "reduce", "reduction"),
    "smooth_l1_loss": ("input", "target", "size_average", "reduce", "reduction"),
    "huber_loss": ("input", "target", "reduction"),
    "soft_margin_loss": ("input", "target", "size_average", "reduce", "reduction"),
    "poisson_nll_loss": ("input", "target", "log_input", "full", "size_average", "eps", "reduce", "reduction"),
    "gaussian_nll_loss": ("input", "target", "var", "full", "eps", "reduction"),
}


class Losses:
    """Watches the loss functions of `torch.nn.functional`."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._depth = 0

    def install(self) -> None:
        """Wrap the functions that exist in this torch."""
        functional = self.core.torch.nn.functional
        for name in (*CLASSES, *ELEMENTWISE, *PER_SAMPLE):
            replace(functional, name, functools.partial(self._wrapped, name))

    def _wrapped(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        core, compiling = self.core, _compiling(self.core.torch)

        def loss(*arguments: Any, **options: Any) -> Any:
            if compiling():
                return original(*arguments, **options)
            self._depth += 1
            try:
                value = original(*arguments, **options)
            finally:
                self._depth -= 1
            # cross_entropy may be written with nll_loss; the outermost call is the one the script made.
            if self._depth == 0 and getattr(value, "requires_grad", False) and core.mine:
                core.guard.run("losses", self._note, name, value, arguments, options)
            return value

        return loss

    def _note(self, name: str, value: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        core = self.core
        core.count("losses")
        if name in PER_SAMPLE:
            core.miss(name)
            return
        given = dict(zip(ARGUMENTS[name], arguments))
        given.update(options)
        target, reduction = given.get("target"), _reduction(given)
        if target is None:
            core.miss(name)
            return
        units, kept, weighted = self._units(name, given, target)
        found = Loss(
            core.site(name, 4),
            reduction,
            units,
            value.detach() if value.numel() == 1 else None,
            weighted=weighted,
            smoothed=bool(given.get("label_smoothing")),
        )
        found.kept = kept if reduction == "none" else None
        value.register_hook(core.guard.wrapped("losses", lambda gradient: self._arrived(found, gradient)))

    def _arrived(self, loss: Loss, gradient: Any) -> None:
        loss.factor = gradient.detach() if loss.factor is None else loss.factor + gradient.detach()
        cell = self.core.cell
        if cell is not None and id(loss) not in cell.known:
            cell.known.add(id(loss))
            cell.losses.append(loss)

    def _units(self, name: str, given: dict[str, Any], target: Any) -> tuple[Any, Any | None, bool]:
        """Return (units, which elements count, whether a unit is a class weight)."""
        torch = self.core.torch
        weight = given.get("weight")
        if name in ELEMENTWISE:
            return int(given["input"].numel()), None, weight is not None
        if target.is_floating_point():  # probabilities instead of class numbers: nothing is ignored
            return int(target.numel() // target.shape[1 if target.dim() > 1 else 0]), None, weight is not None
        kept = target != given.get("ignore_index", -100)
        if weight is None or _reduction(given) != "mean":
            return kept.sum(), kept, False
        # The mean divides by the sum of the weights of the targets, so that sum is what it counts.
        chosen = torch.where(kept, target, torch.zeros_like(target))
        return (weight.detach()[chosen] * kept).sum(), kept, True


def _reduction(given: dict[str, Any]) -> str:
    average, reduce = given.get("size_average"), given.get("reduce")
    if average is None and reduce is None:
        return str(given.get("reduction", "mean"))
    if reduce is False:
        return "none"
    return "mean" if average is not False else "sum"


def _compiling(torch: Any) -> Callable[[], bool]:
    compiler = getattr(torch, "compiler", None)
    found = getattr(compiler, "is_compiling", None) or getattr(compiler, "is_dynamo_compiling", None)
    return found if found is not None else (lambda: False)
