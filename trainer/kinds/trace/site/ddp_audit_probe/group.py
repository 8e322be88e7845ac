"""The process group: when a process becomes a rank, and every collective it enters and leaves."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any, Callable

from .core import Core
from .guard import replace

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_gather_object",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "scatter",
    "scatter_object_list",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "monitored_barrier",
    "send",
    "recv",
)


class Group:
    """Watches `torch.distributed`."""

    def __init__(self, core: Core, at_end: Callable[[], None]) -> None:
        self.core, self._at_end = core, at_end
        self._inside = 0

    def install(self) -> None:
        """Wrap the beginning and the end of the group, and its collectives."""
        distributed = self.core.torch.distributed
        if not distributed.is_available():
            return
        module = sys.modules.get("torch.distributed.distributed_c10d", distributed)
        for name, make in (
            ("init_process_group", self._init),
            ("destroy_process_group", self._destroy),
            *((name, self._collective(name)) for name in COLLECTIVES),
        ):
            original = getattr(module, name, None)
            if original is None or replace(module, name, make) is None:
                continue
            if getattr(distributed, name, None) is original:
                setattr(distributed, name, getattr(module, name))

    def _init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        core = self.core

        def init(*arguments: Any, **options: Any) -> Any:
            value = original(*arguments, **options)
            if core.mine:
                core.guard.run("group", self._joined)
                if core.files is None and core.guard.off:
                    reason = core.guard.off.get("group", "").strip().rpartition("\n")[2]
                    sys.stderr.write(f"ddp-audit: this rank is not traced: {reason}\n")
            return value

        return init

    def _joined(self) -> None:
        core, distributed = self.core, self.core.torch.distributed
        if core.files is not None:
            return
        backend = str(distributed.get_backend())
        on_gpu = "nccl" in backend
        device = f"cuda:{core.torch.cuda.current_device()}" if on_gpu else "cpu"
        versions = {"python": platform.python_version(), "torch": str(core.torch.__version__)}
        core.became_rank(distributed.get_rank(), distributed.get_world_size(), backend, device, versions)
        core.record(
            "rank",
            version=1,
            rank=core.rank,
            world_size=core.world_size,
            backend=backend,
            pid=os.getpid(),
            local_rank=os.environ.get("LOCAL_RANK"),
            command=sys.argv[:50],
            cwd=os.getcwd(),
            versions=versions,
            seed=int(core.torch.initial_seed() % 2**63),
            frameworks={
                name: str(getattr(sys.modules[name], "__version__", ""))
                for name in ("accelerate", "deepspeed", "lightning", "pytorch_lightning", "transformers")
                if name in sys.modules
            },
        )

    def _destroy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        core = self.core

        def destroy(*arguments: Any, **options: Any) -> Any:
            if core.mine and not arguments and not options:
                core.guard.run("end", self._at_end)
            return original(*arguments, **options)

        return destroy

    def _collective(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        core = self.core

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def collective(*arguments: Any, **options: Any) -> Any:
                files = core.files
                if files is None or self._inside or not core.mine or options.get("async_op"):
                    if files is not None and core.mine and not self._inside:
                        self._counted(name)
                    return original(*arguments, **options)
                self._inside += 1
                core.guard.run("group", files.crumb.enter, name)
                try:
                    value = original(*arguments, **options)
                finally:
                    self._inside -= 1
                core.guard.run("group", files.crumb.leave)
                self._counted(name)
                return value

            return collective

        return make

    def _counted(self, name: str) -> None:
        core = self.core
        core.count(name)
        if core.cell is not None and name.startswith("reduce_scatter"):
            core.cell.syncs[-1] = core.cell.syncs.get(-1, 0) + 1
