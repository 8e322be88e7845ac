"""What happens in one window: backward passes, and the gradient reductions that ended with each of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.common.sync_counter import SyncCounter
from trainer.common.telemetry import Telemetry
from trainer.kinds.gradient_audit.changes import Changes

Hook = Callable[[Any, Any], "torch.futures.Future[torch.Tensor]"]


class WindowCounter(SyncCounter):
    """Counts the reductions of a DDP model in its communication hook, around the target's own hook if it has one."""

    def __init__(self, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self.inner: tuple[Any, Hook] | None = None

    def reduce(self, bucket: dist.GradBucket) -> "torch.futures.Future[torch.Tensor]":  # type: ignore[name-defined]
        """Reduce one bucket as DDP does, or as the target's hook does, and count it."""
        if self.inner is None:
            return super().reduce(bucket)
        state, hook = self.inner
        started = self._launch(bucket)

        def finish(future: Any) -> torch.Tensor:
            found = future.value()
            buffer: torch.Tensor = found[0] if isinstance(found, list | tuple) else found
            self._complete(started, buffer)
            return buffer

        return hook(state, bucket).then(finish)


class Arrivals:
    """Which parameters of a DDP model a backward pass reached since a forward pass that requested a reduction."""

    def __init__(self, model: DistributedDataParallel) -> None:
        ignored: set[str] = set(getattr(model, "parameters_to_ignore", ()))
        self._names = [
            name for name, value in model.module.named_parameters() if value.requires_grad and name not in ignored
        ]
        self._reached: set[str] = set()
        self._waits = False
        model.register_forward_pre_hook(self._arm)
        for name, parameter in model.module.named_parameters():
            if name in self._names:
                parameter.register_post_accumulate_grad_hook(lambda _value, name=name: self._reached.add(name))

    def _arm(self, model: nn.Module, _arguments: Any) -> None:
        if torch.is_grad_enabled() and model.require_backward_grad_sync:
            self._waits = True
            self._reached.clear()

    def reduced(self) -> None:
        """Note that a reduction ended."""
        self._waits = False

    @property
    def missing(self) -> list[str]:
        """Parameters without which a reduction that began cannot end, by name."""
        return [name for name in self._names if name not in self._reached] if self._waits and self._reached else []


class Passes:
    """Backward passes of this rank since `begin`, and with which of them a reduction ended."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._depth = 0
        self.counter: WindowCounter | None = None
        """None where reductions cannot be seen."""
        self.hooked: DistributedDataParallel | None = None
        self.backwards = 0
        self.reductions: list[int] = []
        self.arrivals: Arrivals | None = None
        """None where reductions cannot be seen."""
        self.changes: Changes | None = None
        """What the code does to gradients after each backward pass, if somebody wants to know."""

    def begin(self) -> None:
        """Forget everything counted so far."""
        self.backwards, self.reductions = 0, []
        if self.counter is not None:
            self.counter.take()
        if self.changes is not None:
            self.changes.begin()

    def attach(self, model: nn.Module) -> None:
        """Count the reductions of the DDP model in `model`, if there is one; call it outside `watching`."""
        found = next((part for part in model.modules() if isinstance(part, DistributedDataParallel)), None)
        if found is not None:
            inner = None if self.counter is None else self.counter.inner
            self.hooked, self.counter = found, WindowCounter(self._telemetry)
            self.counter.inner = inner
            self.counter.attach(found)
            self.arrivals = Arrivals(found)

    def ended(self) -> None:
        """Note the end of a backward pass."""
        self.reductions += [self.backwards] * self._taken()
        self.backwards += 1
        if self.changes is not None:
            self.changes.open()

    def finish(self) -> None:
        """Note reductions that ended after the last backward pass, and changes of gradients after it."""
        if self.changes is not None:
            self.changes.close()
        self.reductions += [max(0, self.backwards - 1)] * self._taken()

    def _taken(self) -> int:
        found = 0 if self.counter is None else self.counter.take().count
        if found and self.arrivals is not None:
            self.arrivals.reduced()
        return found

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count backward passes inside, and take over hooks that the target registers on its DDP model."""
        backward, register = torch.autograd.backward, DistributedDataParallel.register_comm_hook

        def counted(*args: Any, **options: Any) -> None:
            if self._depth == 0 and self.changes is not None:
                self.changes.close()
            self._depth += 1
            self._telemetry.mark("backward")
            try:
                backward(*args, **options)
            finally:
                self._depth -= 1
            if self._depth == 0:  # reentrant checkpoints start backward passes inside a backward pass
                self.ended()
                self._telemetry.mark("accumulate")

        def taken(model: DistributedDataParallel, state: object, hook: Hook) -> None:
            if self.hooked is model and self.counter is not None:
                self.counter.inner = (state, hook)
            elif self.hooked is None:
                self.counter = WindowCounter(self._telemetry)
                self.counter.inner = (state, hook)
            else:
                register(model, state, hook)

        torch.autograd.backward = counted
        DistributedDataParallel.register_comm_hook = taken  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            torch.autograd.backward = backward
            DistributedDataParallel.register_comm_hook = register  # type: ignore[method-assign]
