"""Records the order in which DDP placed the gradients in its buckets, and counts synchronisations."""

import hashlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainer.common.sync_counter import SyncCounter
from trainer.common.telemetry import Telemetry


class LayoutRecorder(SyncCounter):
    """A counter that also records the bucket layout of the latest synchronisation.

    DDP's first synchronisation uses the order of the parameters, later ones the order in which gradients became
    ready; a restarted process starts with the former again. With three or more ranks, an all-reduce adds in an order
    that depends on the position in a bucket, so the layout affects the last bits unless `ordered` is given.
    """

    def __init__(self, telemetry: Telemetry, *, ordered: bool) -> None:
        super().__init__(telemetry, ordered=ordered)
        self._names: dict[int, str] = {}
        self._buckets_seen: list[str] = []

    def attach(self, model: DistributedDataParallel) -> None:
        """Register as the communication hook of `model`."""
        self._names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        super().attach(model)

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        """Record the contents of the bucket in order, then reduce it."""
        members = ",".join(self._names[id(parameter)] for parameter in bucket.parameters())
        self._buckets_seen.append(f"{bucket.index()}:{members}")
        return super().reduce(bucket)

    def take_layout(self) -> str:
        """Return a short digest of the buckets since the last call, in the order they were reduced."""
        layout = hashlib.sha256(";".join(sorted(self._buckets_seen)).encode()).hexdigest()[:12]
        self._buckets_seen.clear()
        return layout
