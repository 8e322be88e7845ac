"""Very many tiny updates; `python long.py CASE FIRST LAST` writes what the probe holds after so many to $OUT as JSON.

The habits of a script that runs for days: an epoch makes its own loader, now and then a forward has no backward, some
batches have several losses. The one case that looks at the probe from inside is `leaking`: it makes a list in it grow.
"""

import gc
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

BATCHES = 40
"""Updates of an epoch."""
PACKAGE = "ddp_audit_probe"


def held() -> dict[str, int]:
    """Return how many objects of each of the probe's classes live, and the items in what they hold."""
    objects = [item for item in gc.get_objects() if str(type(item).__module__).startswith(PACKAGE)]
    found = Counter(f"{type(item).__name__} objects" for item in objects)
    for item in objects:
        for name, value in getattr(item, "__dict__", {}).items():
            found[f"{type(item).__name__}.{name}"] += items(value)
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGE):
            found[name] = sum(items(value) for key, value in vars(module).items() if key != "__builtins__")
    return dict(found)


def items(value: Any) -> int:
    """Return the number of objects in a container, including nested ones."""
    if isinstance(value, Mapping):
        return sum(1 + items(item) for item in list(value.values()))
    if isinstance(value, (list, tuple, set)):
        return sum(1 + items(item) for item in list(value))
    return 0


def leak() -> None:
    for item in gc.get_objects():
        if type(item).__name__ == "Core":
            item.unseen[f"update {len(item.unseen)}"] = 1


def train(case: str, marks: list[int]) -> dict[int, dict[str, int]]:
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    model = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(BATCHES, 4), torch.randint(0, 4, (BATCHES,)))
    found: dict[int, dict[str, int]] = {}
    step = 0
    while step < marks[-1]:
        for inputs, labels in DataLoader(data, shuffle=True):
            if step % 7 == 0:
                model(inputs)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            if step % 5 == 0:
                loss = loss + nn.functional.mse_loss(model(inputs), torch.zeros(1, 4))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if case == "leaking":
                leak()
            if step in marks:
                gc.collect()
                found[step] = held()
    return found


if __name__ == "__main__":
    sizes = train(sys.argv[1], [int(mark) for mark in sys.argv[2:]])
    with open(f"{os.environ['OUT']}.{dist.get_rank()}", "w") as handle:
        json.dump(sizes, handle)
    dist.destroy_process_group()
