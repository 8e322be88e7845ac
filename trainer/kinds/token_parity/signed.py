"""One parameter, targets +1 and -1 on two ranks, with real DDP: the losses agree but the gradients do not."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.common.distributed import Group
from trainer.common.window import RULES, accumulate
from trainer.kinds.token_parity.examples import TARGETS

RANKS = [0, 1]


class OneParameter(nn.Module):
    """Predicts the same number for every target, initially 0."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, targets: Tensor) -> Tensor:
        """Return the prediction for each of `targets` [N]."""
        return self.value.expand_as(targets)


def squared_error_sum(model: nn.Module, targets: Tensor) -> Tensor:
    """Return the sum over targets of (prediction - target) squared."""
    error: Tensor = model(targets) - targets
    return error.square().sum()


def signed_gradients(group: Group) -> dict[str, dict[str, float]] | None:
    """Return loss and gradient on this rank under both rules; None on ranks beyond the first two.

    Every rank must call this: creating the subgroup is collective.
    """
    pair = dist.new_group(RANKS) if group.world_size > len(RANKS) else None
    found = None
    if group.rank in RANKS:
        two = Group(
            rank=group.rank,
            world_size=len(RANKS),
            device=group.device,
            backend=group.backend,
            telemetry=group.telemetry,
            process_group=pair if isinstance(pair, dist.ProcessGroup) else None,
        )
        found = {name: _measure(two, name) for name in ("correct", "rank_mean")}
    group.barrier("signed example")
    return found


def _measure(group: Group, rule: str) -> dict[str, float]:
    count, target = TARGETS[group.rank]
    targets = torch.full((count,), float(target), dtype=torch.float64, device=group.device)
    devices = [group.device.index] if group.device.type == "cuda" else None
    with group.telemetry.collective("wrap the one-parameter model"):
        model = DistributedDataParallel(
            OneParameter().to(group.device), device_ids=devices, process_group=group.process_group
        )
    sums, counts = accumulate(group, model, [targets], [count], squared_error_sum, rule=RULES[rule])
    losses = group.sum_floats([sum(sums), sums[0] / count])
    gradient: Any = model.module.value.grad
    loss = losses[0] / counts.window if rule == "correct" else losses[1] / group.world_size
    return {"loss": loss, "gradient": float(gradient.item())}
