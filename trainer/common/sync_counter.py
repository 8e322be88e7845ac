"""Counts gradient synchronisations from inside DDP's communication hook without changing what DDP computes."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainer.common.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncWindow:
    """Reductions since the last call of `take`, usually of one update."""

    count: int
    """Completed gradient reductions of the whole model, regardless of their number of buckets."""
    size: int
    """Bytes of gradients reduced."""
    seconds: float
    """Time with at least one active bucket, from the call of its hook to the completion of its collective."""
    buckets: int
    """Buckets reduced."""


class SyncCounter:
    """State of the hook of one DDP model; `attach` registers it, `take` reads and resets the counts.

    DDP calls a hook once per bucket, in order of bucket index, and expects the averaged bucket back (it does not
    divide itself once a hook is registered). A synchronisation is complete when the last bucket was launched and
    every launched bucket is done; that holds for the initial buckets of the first step as well as for the rebuilt ones.
    """

    def __init__(self, telemetry: Telemetry, *, ordered: bool = False) -> None:
        """With `ordered` the ranks' buckets are gathered and added in rank order instead of all-reduced.

        A sum of three or more floats depends on its order, and an all-reduce's order depends on where a gradient
        sits in its bucket; adding in rank order gives the same bits for every bucket layout.
        """
        self._telemetry = telemetry
        self._ordered = ordered
        self._process_group: dist.ProcessGroup | None = None
        self._nccl = self._waits = False
        self._lock = threading.Lock()
        self._launched = self._done = 0  # buckets of the reduction in progress
        self._last_launched = False
        self._open = 0  # buckets whose collective is active
        self._count = self._size = self._buckets = 0
        self._spans: list[tuple[float, float]] = []
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def attach(self, model: DistributedDataParallel) -> None:
        """Register as the communication hook of `model`."""
        self._process_group = model.process_group
        on_gpu = next(model.parameters()).is_cuda
        self._nccl = on_gpu and "nccl" in dist.get_backend_config(self._process_group)
        # gloo's futures are designed for CPU tensors: with a shared GPU the hook waits itself, which costs overlap.
        self._waits = on_gpu and not self._nccl
        model.register_comm_hook(self, synchronise)

    def take(self) -> SyncWindow:
        """Return what was completed since the last call. On CUDA this waits for active reductions."""
        with self._lock:
            self._settle_cuda()
            seconds = covered(self._spans)
            window = SyncWindow(count=self._count, size=self._size, seconds=seconds, buckets=self._buckets)
            self._count = self._size = self._buckets = 0
            self._spans.clear()
        return window

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        """Average one bucket over the ranks and update the counts."""
        buffer: torch.Tensor = bucket.buffer()
        started = self._launch(bucket)
        world_size = dist.get_world_size(self._process_group)
        self.average(buffer, world_size)
        if self._ordered:
            parts = [torch.empty_like(buffer) for _ in range(world_size)]
            work = dist.all_gather(parts, buffer, group=self._process_group, async_op=True)
        else:
            parts = []
            work = dist.all_reduce(buffer, group=self._process_group, async_op=True)

        def finish(future: torch.futures.Future[Any] | None) -> torch.Tensor:
            if future is not None:
                future.value()  # raises here if the collective failed; the breadcrumb then still says "inside"
            for part in parts[1:]:
                parts[0].add_(part)
            if parts:
                buffer.copy_(parts[0])
            self._complete(started, buffer)
            return buffer

        if self._waits:
            return _completed(work, finish)
        reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(finish)
        return reduced

    def average(self, buffer: torch.Tensor, world_size: int) -> None:
        """Turn this rank's bucket into its share of the mean, like DDP without a hook.

        DDP multiplies by the inverse. Dividing gives different bits unless world_size is a power of two.
        """
        buffer.mul_(1.0 / world_size)

    def record_synchronisation(self) -> None:
        """Count one completed reduction of the whole model; called with the lock held."""
        self._count += 1

    def _launch(self, bucket: Any) -> float | torch.cuda.Event:
        with self._lock:
            self._telemetry.crumb.enter(f"gradients, bucket {bucket.index()}")
            self._launched += 1
            self._open += 1
            self._last_launched = bucket.is_last()
        return _cuda_event() if self._nccl else time.perf_counter()

    def _complete(self, started: float | torch.cuda.Event, buffer: torch.Tensor) -> None:
        with self._lock:
            self._done += 1
            self._buckets += 1
            self._size += buffer.numel() * buffer.element_size()
            if isinstance(started, float):
                self._spans.append((started, time.perf_counter()))
                self._leave()
            else:
                # NCCL's futures complete when the work is queued: the time and the end are read in `take`.
                self._events.append((started, _cuda_event()))
            if self._last_launched and self._done == self._launched:
                self._launched = self._done = 0
                self._last_launched = False
                self.record_synchronisation()

    def _leave(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._telemetry.crumb.leave()

    def _settle_cuda(self) -> None:
        for started, ended in self._events:
            ended.synchronize()
            origin = self._events[0][0]
            self._spans.append((origin.elapsed_time(started) / 1000, origin.elapsed_time(ended) / 1000))
            self._leave()
        self._events.clear()


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of (start, end) spans: overlapping buckets count once."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def synchronise(state: SyncCounter, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Pass a bucket to its counter; DDP checks the names and annotations of a hook's parameters."""
    return state.reduce(bucket)


def _completed(work: Any, finish: Callable[[None], torch.Tensor]) -> torch.futures.Future[torch.Tensor]:
    work.wait()
    result = finish(None)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[result.device] if result.is_cuda else None)
    done.set_result(result)
    return done


def _cuda_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
