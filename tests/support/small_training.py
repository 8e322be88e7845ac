"""A small training with all state that a checkpoint contains: momentum, schedule, dropout, batch statistics."""

import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR

from trainer.common.checkpoints.identity import Identity
from trainer.common.checkpoints.state import TrainingState

UPDATES = 10


class SmallTraining:
    """One process; the data of update n is drawn from the global generator, so it depends on the generator's state."""

    def __init__(self, seed: int = 7) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))
        self.optimizer = SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = CosineAnnealingLR(self.optimizer, UPDATES)
        self.step = 0
        self.rates: list[float] = []

    @property
    def state(self) -> TrainingState:
        return TrainingState(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler)

    def train(self, until: int) -> None:
        while self.step < until:
            self.optimizer.zero_grad()
            self.model(torch.randn(5, 4)).square().mean().backward()
            self.optimizer.step()
            self.rates.append(float(self.optimizer.param_groups[0]["lr"]))
            self.scheduler.step()
            self.step += 1

    def bits(self) -> list[torch.Tensor]:
        momenta = [self.optimizer.state[item]["momentum_buffer"] for item in self.model.parameters()]
        return [*(value.clone() for value in self.model.state_dict().values()), *(item.clone() for item in momenta)]


def make_identity(**changes: object) -> Identity:
    values = {
        "kind": "resume",
        "config": {"seed": 7, "learning_rate": 0.1, "stop_step": 5},
        "data_lock": "a" * 64,
        "world_size": 1,
        "free": frozenset({"stop_step", "save_every"}),
    }
    return Identity(**{**values, **changes})  # type: ignore[arg-type]
