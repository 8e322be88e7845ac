"""What DDP's communication hook does in a traced rank: average as DDP does, or follow the script's own hook, and count.

Private name of torch: its engine, for a callback at the end of a backward pass. There is no public way; torch's own
`fully_shard` takes this one.
"""

from __future__ import annotations

import contextlib
import functools
import time
from typing import Any, Callable

from .core import Core


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
        try:
            self.core.torch.autograd.Variable._execution_engine.queue_callback(action)
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


# DDP reads the annotations of a hook and refuses any but its own; these have none.
def averaging(state, bucket):  # type: ignore[no-untyped-def]
    """Average one bucket as DDP does, and keep the books."""
    state.core.guard.run("models", state.launched, bucket)
    return state.average(bucket)


def counted(hook: Callable[..., Any], counter: Reductions) -> Callable[..., Any]:
    """Return the script's own hook with its reductions counted."""
    guard = counter.core.guard

    def counting(state, bucket):  # type: ignore[no-untyped-def]
        guard.run("models", counter.launched, bucket)
        future = hook(state, bucket)
        guard.run("models", counter.follow, bucket, future)
        return future

    return counting
