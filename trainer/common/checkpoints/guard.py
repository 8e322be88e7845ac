"""Whether the content of a save is of the update it is named after: nothing may train while state is written."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

from trainer.common.checkpoints.errors import CheckpointNotSaved


class UpdateCount:
    """Counts the steps of one optimizer by its own hooks, from a save or load on, when its update is known."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._begun = self._finished = 0
        self._offset: int | None = None
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._finish)

    def is_at(self, step: int) -> None:
        """Take for known that the optimizer's state is that after `step` updates."""
        self._begun, self._offset = self._finished, step - self._finished

    def check(self, step: int) -> None:
        """Raise CheckpointNotSaved when the optimizer is further than `step`, or on its way to the update after it.

        It may be behind: a gradient scaler leaves out the optimizer's step of an update with infinite gradients.
        """
        if self._offset is None:
            self.is_at(step)
        now = self._begun + (self._offset or 0)
        if now > step:
            raise CheckpointNotSaved(
                f"step {step}: the optimizer is at update {now}, so the state is not that after {step} updates; "
                "save before the next update begins, and let nothing train until the save has returned"
            )

    def _begin(self, *_: Any) -> None:
        self._begun = self._finished + 1

    def _finish(self, *_: Any) -> None:
        self._finished = self._begun


_COUNTS: Final[WeakKeyDictionary[Optimizer, UpdateCount]] = WeakKeyDictionary()


def update_count(optimizer: Optimizer) -> UpdateCount:
    """Return the count of an optimizer; it begins with the first call."""
    if optimizer not in _COUNTS:
        _COUNTS[optimizer] = UpdateCount(optimizer)
    return _COUNTS[optimizer]


@contextmanager
def standing_still(step: int, optimizer: Optimizer, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Raise CheckpointNotSaved unless the optimizer is at `step` and every tensor is left alone meanwhile.

    `tensors` are those that are written, by name.
    """
    count = update_count(optimizer)
    versions = {name: _version(tensor) for name, tensor in tensors.items()}
    count.check(step)
    yield
    count.check(step)
    for name, tensor in tensors.items():
        if _version(tensor) != versions[name]:
            raise CheckpointNotSaved(
                f"step {step}: {name} was changed while it was written; let nothing train until the save has returned"
            )
    count.is_at(step)


def _version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed in place, as autograd counts it; it does not for inference tensors."""
    return 0 if tensor.is_inference() else int(tensor._version)
