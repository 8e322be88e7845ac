"""Where the buffers of a model end after a window, and where one or two forward passes per micro-batch lead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from trainer.kinds.gradient_audit.engine import Engine, fresh_model, load, whole
from trainer.kinds.gradient_audit.objective import set_buffers

TOLERANCE: Final = 1e-5
"""Of a buffer, relative to its largest value."""
BATCH_STATISTICS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """One buffer that is not where one forward pass per micro-batch leads."""

    name: str
    step: int
    once: Tensor
    twice: Tensor
    observed: Tensor


def batch_statistics(model: nn.Module) -> list[str]:
    """Return the layers whose output for a sample depends on the rest of its micro-batch."""
    return [
        name
        for name, part in model.named_modules()
        if isinstance(part, BATCH_STATISTICS) and (part.training or not part.track_running_stats)
    ]


class BufferAudit:
    """Buffers of rank 0, which are those that DDP keeps: other ranks' are overwritten at the next forward pass."""

    def __init__(self, engine: Engine) -> None:
        """Build a plain copy of the model if the model has buffers."""
        self._engine = engine
        state = {**_parameters(engine.model), **_buffers(engine.model)}
        self._start: dict[str, Tensor] = {}
        self.names = list(engine.buffers())
        self._plain = fresh_model(engine.target, engine.group, state, engine.dtype) if self.names else None
        self.found: list[Moves] = []

    def begin(self) -> None:
        """Remember where the model is before a window. Collective if it is sharded."""
        if self.names:
            self._start = {**_parameters(self._engine.model), **_buffers(self._engine.model)}

    def end(self, batches: Sequence[Any], step: int) -> None:
        """Compare where the buffers are after the window of this rank."""
        plain = self._plain
        if plain is None:
            return
        observed = self._engine.buffers()
        once = self._after(plain, batches, step, times=1)
        odd = [name for name in self.names if not same(observed[name], once[name])]
        twice = self._after(plain, batches, step, times=2) if odd else {}
        self.found += [
            Moves(name=name, step=step, once=once[name], twice=twice[name], observed=observed[name]) for name in odd
        ]

    def _after(self, plain: nn.Module, batches: Sequence[Any], step: int, *, times: int) -> dict[str, Tensor]:
        target, rank = self._engine.target, self._engine.group.rank
        load(target, plain, self._start, rank)
        with torch.no_grad():
            for batch in batches:
                for _ in range(times):
                    target.loss("loss_sum", plain, batch, rank=rank, step=step)
        found = {name: value.detach().cpu().clone() for name, value in plain.named_buffers() if name in self.names}
        set_buffers(plain, self._start)
        return found


def same(observed: Tensor, expected: Tensor) -> bool:
    """Return whether a buffer is where it should be: integers exactly, floats within rounding."""
    if not expected.is_floating_point():
        return bool(torch.equal(observed, expected))
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    return bool(((observed - expected).abs() <= TOLERANCE * scale).all())


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(value).clone() for name, value in model.named_parameters()}


def _buffers(model: nn.Module) -> Mapping[str, Tensor]:
    return {name: whole(value).clone() for name, value in model.named_buffers()}
