"""Models wrapped in DistributedDataParallel: their forwards, the reductions of their gradients, what they reduce."""

from __future__ import annotations

import contextlib
import functools
import time
from typing import Any, Callable

from . import digests
from .core import Core
from .guard import replace

MOST_NAMES = 5000


class Reductions:
    """Counts the reductions of one model inside its communication hook.

    Nothing of it runs in a thread of the backend: a script that ends right after its last backward pass would end while
    that thread still waits for the interpreter, which aborts the process. A reduction is waited for where DDP waits for
    it: in a callback of the backward pass, queued before DDP's own.
    """

    def __init__(self, core: Core, model: int, group: Any) -> None:
        distributed = core.torch.distributed
        self.core, self.model, self.process_group = core, model, group
        self.world_size = distributed.get_world_size(group)
        self._running: list[tuple[int, Any, Any, Any]] = []
        """Of each bucket whose reduction runs: its index, the work, the future that DDP has, the buffer."""
        self._launched = self._done = 0
        self._last = False
        self._begin = 0.0

    def launched(self, bucket: Any) -> None:
        """Note that a bucket's reduction begins."""
        if self._launched == 0:
            self._begin = time.time()
        self._launched += 1
        self._last = bool(bucket.is_last())

    def average(self, bucket: Any) -> Any:
        """Average one bucket as DDP does, and return the future of its buffer."""
        core, buffer = self.core, bucket.buffer()
        buffer.mul_(1.0 / self.world_size)  # DDP multiplies by the inverse; dividing gives other bits at three ranks
        work = core.torch.distributed.all_reduce(buffer, group=self.process_group, async_op=True)
        future = core.torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
        self._running.append((bucket.index(), work, future, buffer))
        self._at_end(self._finish)
        return future

    def follow(self, bucket: Any, future: Any) -> None:
        """Wait for the reduction of a hook of the script when DDP does."""
        self._at_end(functools.partial(self._awaited, bucket.index(), future))

    def _at_end(self, action: Callable[[], None]) -> None:
        # torch has no public way; its own fully_shard takes this one.
        engine = getattr(self.core.torch.autograd.Variable, "_execution_engine", None)
        try:
            engine.queue_callback(action)
        except (AttributeError, RuntimeError):  # no backward pass: a rank without data left matches the others' (join)
            action()

    def _finish(self) -> None:
        """Complete every running reduction: with a backward inside a backward DDP may wait for all in the inner one.

        Raises what a failed reduction raises, as DDP would.
        """
        running, self._running = self._running, []
        for index, work, future, buffer in running:
            self._enter(index)
            work.wait()
            future.set_result(buffer)
            self._leave()

    def _awaited(self, index: int, future: Any) -> None:
        self._enter(index)
        with contextlib.suppress(Exception):  # DDP raises it
            future.wait()
        self._leave()

    def _enter(self, index: int) -> None:
        if self.core.files is not None:
            self.core.guard.run("models", self.core.files.crumb.enter, f"gradients, bucket {index}")

    def _leave(self) -> None:
        self.core.guard.run("models", self._completed)

    def _completed(self) -> None:
        """Note that a bucket's reduction is over; with the last one the model's gradients are reduced."""
        core = self.core
        self._done += 1
        if core.files is not None:
            core.files.crumb.leave()
        if not (self._last and self._done == self._launched):
            return
        self._launched = self._done = 0
        self._last = False
        cell = core.cell
        core.count("syncs")
        if cell is not None:
            cell.syncs[self.model] = cell.syncs.get(self.model, 0) + 1
            cell.sync_spans.append([self._begin, time.time()])


class Models:
    """Watches `DistributedDataParallel`."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._counters: dict[int, Reductions] = {}
        self._hooked: dict[int, str] = {}
        self._begun: set[int] = set()
        """Models whose first forward in training has begun."""
        self.reduced: dict[int, Any] = {}
        """Model -> ids of the parameters that DDP reduces."""

    def install(self) -> None:
        """Wrap construction, forward and the registration of hooks."""
        ddp = self.core.torch.nn.parallel.DistributedDataParallel
        replace(ddp, "__init__", self._init)
        replace(ddp, "forward", self._forward)
        replace(ddp, "register_comm_hook", self._register)

    def _init(self, original: Callable[..., None]) -> Callable[..., None]:
        core = self.core

        def init(model: Any, module: Any, *arguments: Any, **options: Any) -> None:
            before = core.guard.run("digests", digests.of_module, core.torch, module) if core.mine else None
            original(model, module, *arguments, **options)
            if core.mine:
                core.guard.run("models", self._wrapped, model, module, before, options)

        return init

    def _wrapped(self, model: Any, module: Any, before: dict[str, str] | None, options: dict[str, Any]) -> None:
        core, torch = self.core, self.core.torch
        number = core.number("model")
        core.models[model] = number
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        self.reduced[number] = {id(parameter) for _, parameter in named}
        counter = self._counters[number] = Reductions(core, number, model.process_group)
        kinds = {name: type(part).__name__ for name, part in module.named_modules()}
        norms = [name for name, kind in kinds.items() if "BatchNorm" in kind and "Sync" not in kind]
        core.record(
            "model",
            model=number,
            engine="ddp",
            name=type(module).__name__,
            site=core.site("DistributedDataParallel", 4),
            world_size=counter.world_size,
            parameters=[name for name, _ in named][:MOST_NAMES],
            frozen=[name for name, item in module.named_parameters() if not item.requires_grad][:MOST_NAMES],
            elements=sum(parameter.numel() for _, parameter in named),
            buffers=[name for name, _ in module.named_buffers()][:MOST_NAMES],
            batch_norms=norms[:MOST_NAMES],
            dropouts=any("Dropout" in kind for kind in kinds.values()),
            initial=before,
            wrapped=digests.of_module(torch, module),
            find_unused=bool(options.get("find_unused_parameters")),
            bucket_views=bool(options.get("gradient_as_bucket_view")),
            static_graph=bool(options.get("static_graph")),
        )

    def _forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        core, torch = self.core, self.core.torch

        def forward(model: Any, *arguments: Any, **options: Any) -> Any:
            if not core.mine or not torch.is_grad_enabled() or not model.training:
                return original(model, *arguments, **options)
            core.guard.run("models", self._begin_forward, model, arguments, options)
            began = time.time()
            output = original(model, *arguments, **options)
            core.guard.run("models", self._end_forward, model, began)
            return output

        return forward

    def _begin_forward(self, model: Any, arguments: Any, options: dict[str, Any]) -> None:
        core = self.core
        core.rows = _rows(core.torch, (*arguments, *options.values()))
        number = core.models.get(model)
        if number is None:
            return
        if number not in self._hooked:
            self._hooked[number] = "ours"
            try:
                model.register_comm_hook(self._counters[number], _averaging)
            except Exception as error:
                self._hooked[number] = f"none: {error}"
            core.record("hook", model=number, hook=self._hooked[number])
        if number not in self._begun:
            self._begun.add(number)
            core.record("stream", model=number, digest=digests.of_generators(core.torch))
        core.mark("forward")

    def _end_forward(self, model: Any, began: float) -> None:
        core = self.core
        number = core.models.get(model)
        if number is None:
            return
        core.forwards += 1
        core.count(f"forwards of model {number}")
        core.forwarded.add(number)
        core.forward_sync[number] = bool(model.require_backward_grad_sync)
        core.forward_span = (began if core.forward_span is None else core.forward_span[0], time.time())

    def _register(self, original: Callable[..., Any]) -> Callable[..., Any]:
        core = self.core

        def register(model: Any, state: Any, hook: Callable[..., Any]) -> Any:
            number = core.models.get(model)
            if hook is _averaging or number is None or not core.mine:
                return original(model, state, hook)
            self._hooked[number] = getattr(hook, "__name__", str(hook))
            core.record("hook", model=number, hook=self._hooked[number], site=core.site("register_comm_hook", 3))
            return original(model, state, _counted(hook, self._counters[number]))

        return register

    def wants_sync(self, models: list[int]) -> bool:
        """Return whether the models that a backward belongs to would synchronise now."""
        core = self.core
        wanted = {number: model for model, number in core.models.items()}
        return any(bool(wanted[number].require_backward_grad_sync) for number in models if number in wanted)


def _rows(torch: Any, inputs: Any) -> int | None:
    """Return how many samples a model is given: the length of its first tensor."""
    for item in inputs:
        if isinstance(item, torch.Tensor) and item.dim() > 0:
            return int(item.shape[0])
        if isinstance(item, dict):
            found = _rows(torch, item.values())
            if found is not None:
                return found
    return None


# DDP reads the annotations of a hook and refuses any but its own; these have none.
def _averaging(state, bucket):  # type: ignore[no-untyped-def]
    """Average one bucket as DDP does, and keep the books."""
    state.core.guard.run("models", state.launched, bucket)
    return state.average(bucket)


def _counted(hook: Callable[..., Any], counter: Reductions) -> Callable[..., Any]:
    guard = counter.core.guard

    def counting(state, bucket):  # type: ignore[no-untyped-def]
        guard.run("models", counter.launched, bucket)
        future = hook(state, bucket)
        guard.run("models", counter.follow, bucket, future)
        return future

    return counting
