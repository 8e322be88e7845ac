"""An Accelerate loop as its documentation writes it; `python accelerate_loop.py right|short_last_window`."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(case: str) -> None:
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    examples = 64 if case == "right" else 56  # 7 micro-batches a rank: the last window of an epoch has 3
    data = TensorDataset(torch.randn(examples, 8), torch.randint(0, 4, (examples,)))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4, shuffle=True))
    for _ in range(2):
        for batch, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(batch), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
