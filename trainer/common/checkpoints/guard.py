"""Checks that a save contains the state of its update: nothing may train while state is written."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

from trainer.common.checkpoints.errors import CheckpointNotSaved


class UpdateCount:
    """Counts the steps of one optimizer with its hooks, starting at a save or load, when its update is known."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._begun = self._finished = 0
        self._offset: int | None = None
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._finish)

    def is_at(self, step: int) -> None:
        """Record that the optimizer's state is that after `step` updates."""
        self._begun, self._offset = self._finished, step - self._finished

    def check(self, step: int) -> None:
        """Raise CheckpointNotSaved if the optimizer is beyond `step`, or has started the next update.

        It may be behind: a gradient scaler skips the optimizer's step of an update with infinite gradients.
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
    """Return the step count of an optimizer; counting begins with the first call."""
    if optimizer not in _COUNTS:
        _COUNTS[optimizer] = UpdateCount(optimizer)
    return _COUNTS[optimizer]


@contextmanager
def standing_still(step: int, optimizer: Optimizer, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Raise CheckpointNotSaved unless the optimizer is at `step` and no tensor changes in the meantime.

    `tensors` are the written tensors, by name.
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
    """Return autograd's count of in-place changes of a tensor; there is none for inference tensors."""
    return 0 if tensor.is_inference() else int(tensor._version)
