"""Models wrapped in DistributedDataParallel: their forwards, the reductions of their gradients, what they reduce."""

from __future__ import annotations

import time
from typing import Any, Callable

from . import digests
from .core import Core
from .guard import replace
from .reductions import Reductions, averaging, counted

MOST_NAMES = 5000


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
                model.register_comm_hook(self._counters[number], averaging)
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
            if hook is averaging or number is None or not core.mine:
                return original(model, state, hook)
            self._hooked[number] = getattr(hook, "__name__", str(hook))
            core.record("hook", model=number, hook=self._hooked[number], site=core.site("register_comm_hook", 3))
            return original(model, state, counted(hook, self._counters[number]))

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
