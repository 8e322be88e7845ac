"""`fully_shard` over gloo; `python fsdp2.py right|rank_mean`."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, IGNORED = 3, -100


def main(case: str) -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(10 * step + rank)
        tokens = torch.randint(0, 20, (2, 8), generator=draw)
        targets = tokens.clone()
        targets.view(-1)[3 + 7 * rank + step :] = IGNORED
        loss = nn.functional.cross_entropy(model(tokens).transpose(1, 2), targets, reduction="sum")
        count = torch.tensor(float((targets != IGNORED).sum()))
        if case == "right":
            dist.all_reduce(count)
            count /= world_size
        (loss / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
