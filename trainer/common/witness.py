"""Counts gradient synchronisations a second time: all-reduce events recorded by torch's profiler, matched by bytes.

It shares no code and no data with the communication hook: events come from the backend itself (gloo, NCCL), sizes from
the shapes the profiler recorded, and the expected bytes from the model's parameters.
"""

import gzip
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, Final

import orjson
from torch import nn
from torch.profiler import ProfilerActivity, profile

from trainer.common.witness_facts import WindowEvidence
from trainer.contract.files import make_folder

ITEM_BYTES: Final[Mapping[str, int]] = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "int": 4, "long int": 8, "long": 8,
    "Float": 4, "Double": 8, "BFloat16": 2, "Half": 2, "Int": 4, "Long": 8,
    "unsigned char": 1, "signed char": 1, "Byte": 1, "Char": 1, "bool": 1, "Bool": 1,
}  # fmt: skip
"""Bytes per element, by the type names used in traces."""
FIRST_WINDOWS: Final = 3
"""Windows sampled at the start: DDP's initial buckets, the rebuilt ones, and one more."""
COMPRESSION: Final = 4
"""Level of gzip for traces that are kept: quick, and nearly as small as the default."""
SETTLE_SECONDS: Final = 0.1
"""Pause between the end of a window and the end of its recording."""


def gradient_bytes(model: nn.Module) -> int:
    """Return the bytes of one gradient of every trainable parameter."""
    return sum(item.numel() * item.element_size() for item in model.parameters() if item.requires_grad)


def is_sampled(step: int, steps_per_epoch: int) -> bool:
    """Return whether the window after `step` updates is recorded: the first three, then each later epoch's first."""
    return step < FIRST_WINDOWS or step % steps_per_epoch == 0


def all_reduce_sizes(events: Sequence[Mapping[str, Any]], backend: str) -> list[int]:
    """Return the bytes of every all-reduce in a Chrome trace's events.

    gloo and NCCL annotate each collective as `<backend>:all_reduce` with its input's shape and type; if NCCL omits the
    shape, its `record_param_comms` entries have element counts. Raises ValueError for an unknown type name.
    """
    name = f"{backend}:all_reduce"
    annotated = [item for item in events if item.get("name") == name and item.get("cat") == "user_annotation"]
    if annotated and all(_arguments(item).get("Input Dims") for item in annotated):
        return [_annotated_size(_arguments(item)) for item in annotated]
    recorded = [_arguments(item) for item in events if item.get("name") == "record_param_comms"]
    return [
        int(item["In msg nelems"]) * _item_bytes(str(item["dtype"]))
        for item in recorded
        if str(item.get("Collective name", "")).startswith("allreduce")
    ]


class ProfilerWitness:
    """Records sampled windows on one rank and reads the evidence from its traces."""

    def __init__(self, model: nn.Module, *, backend: str, traces: Path, within: Path) -> None:
        """`traces` is the folder, inside `within`, for the traces of the first windows, for Perfetto or Chrome."""
        # Kineto prints every start and stop to stderr; keep that out of the rank's log.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._model_bytes, self._backend = gradient_bytes(model), backend
        self._traces, self._within = traces, within
        self._on_gpu = any(parameter.is_cuda for parameter in model.parameters())
        self.windows: list[WindowEvidence] = []

    @contextmanager
    def window(self, step: int) -> Iterator[None]:
        """Record one accumulation window, forward to optimizer step; nothing else may all-reduce inside."""
        activities = [ProfilerActivity.CPU]
        if self._on_gpu:
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities, record_shapes=True) as recording:
            yield
            # The backend's threads record the end of a reduction after they have signalled it (seen on torch 2.8): a
            # profiler that is stopped immediately loses the event.
            time.sleep(SETTLE_SECONDS)
        self.windows.append(self._evidence(recording, step))

    def _evidence(self, recording: profile, step: int) -> WindowEvidence:
        make_folder(self._traces, within=self._within)
        plain = self._traces / f".window-{step:04d}.json"
        recording.export_chrome_trace(str(plain))  # the profiler compresses slowly, and most traces are not kept
        data = plain.read_bytes()
        plain.unlink()
        sizes = all_reduce_sizes(orjson.loads(data)["traceEvents"], self._backend)
        path = self._traces / f"window-{step:04d}.json.gz"
        keep = step < FIRST_WINDOWS
        if keep:
            path.write_bytes(gzip.compress(data, COMPRESSION))
        reductions, unmatched = divmod(sum(sizes), self._model_bytes)
        return WindowEvidence(
            step=step,
            reductions=reductions,
            unmatched_bytes=unmatched,
            events=len(sizes),
            size=sum(sizes),
            trace=path.name if keep else "",
        )


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = event.get("args", {})
    return found


def _annotated_size(arguments: Mapping[str, Any]) -> int:
    pairs = zip(arguments["Input Dims"], arguments["Input type"], strict=True)
    # An input that is not a tensor has neither shape nor type; a tensor without dimensions has a type and one element.
    return sum(prod(dims) * _item_bytes(kind) for dims, kind in pairs if kind and kind != "Scalar")


def _item_bytes(kind: str) -> int:
    if kind not in ITEM_BYTES:
        raise ValueError(f"element type {kind!r} in a profiler trace is unknown; known are {sorted(ITEM_BYTES)}")
    return ITEM_BYTES[kind]
