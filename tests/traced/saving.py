"""Trains with dropout and saves the weights into `OUT`; `python saving.py plain|own_hook|closure|plain_next_float`."""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def halved(state: int, bucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[no-untyped-def]  # DDP looks
    """A hook of the script's own: a sum, then a division."""
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    averaged: torch.futures.Future[torch.Tensor] = work.then(lambda done: done.value()[0] / state)
    return averaged


def main(case: str) -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(9)
    body: Any = nn.Sequential(nn.Linear(12, 40), nn.GELU(), nn.Dropout(0.3), nn.Linear(40, 5))
    if case == "plain_next_float":
        with torch.no_grad():
            body[0].bias[0] = torch.nextafter(body[0].bias[0], torch.tensor(9.0))
    model = DistributedDataParallel(body, bucket_cap_mb=0.001)
    if case == "own_hook":
        model.register_comm_hook(world_size, halved)
    torch.manual_seed(100 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(96, 12, generator=torch.Generator().manual_seed(2)), torch.arange(96) % 5)
    sampler: Any = DistributedSampler(data)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch, labels in DataLoader(data, batch_size=4, sampler=sampler):

            def closure(batch: Any = batch, labels: Any = labels) -> torch.Tensor:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(batch), labels)
                loss.backward()
                return loss

            if case == "closure":
                optimizer.step(closure)
            else:
                closure()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
    if rank == 0:
        torch.save(body.state_dict(), os.environ["OUT"])


if __name__ == "__main__":
    main(sys.argv[1])
    dist.destroy_process_group()
