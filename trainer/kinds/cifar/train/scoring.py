"""Scores a split on all ranks together, always with rank 0's BatchNorm statistics."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from trainer.common.distributed import Group
from trainer.common.evaluation import Evaluation, Tally, batched, share
from trainer.kinds.cifar.data.images import ImageSplit, normalised
from trainer.kinds.cifar.train.setup import autocast

EVALUATION_BATCH = 200
BATCHES_PER_EVENT = 10


@contextmanager
def first_ranks_buffers(network: nn.Module, group: Group) -> Iterator[None]:
    """Use rank 0's buffers on every rank and restore each rank's own afterwards: evaluation has no side effect."""
    buffers = list(network.buffers())
    own = [buffer.clone() for buffer in buffers]
    if group.world_size > 1:
        with group.telemetry.collective("buffers of rank 0"):
            for buffer in buffers:
                dist.broadcast(buffer, src=0)
    yield
    for buffer, kept in zip(buffers, own, strict=True):
        buffer.copy_(kept)


@torch.no_grad()
def score(network: nn.Module, split: ImageSplit, group: Group, *, classes: int, precision: str) -> Evaluation:
    """Return the scores of `network` (without its DDP wrapper) on `split`, in evaluation mode."""
    tally = Tally(samples=len(split), classes=classes, device=group.device)
    was_training = network.training
    network.eval()
    with first_ranks_buffers(network, group):
        for number, ids in enumerate(batched(share(len(split), group.rank, group.world_size), EVALUATION_BATCH)):
            if number % BATCHES_PER_EVENT == BATCHES_PER_EVENT - 1:
                group.telemetry.phase(group.telemetry.crumb.phase)  # a heartbeat during a long evaluation
            images, labels = split.raw(ids)
            with autocast(group.device, precision):
                logits = network(normalised(images))
            tally.add(ids, logits, labels)
    network.train(was_training)
    return tally.combined(
        lambda values: group.sum_integers(values, "sum of evaluation counts"),
        lambda values: group.sum_floats(values, "sum of evaluation losses"),
    )
