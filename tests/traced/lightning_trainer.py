"""A Lightning Trainer that starts its own ranks; `python lightning_trainer.py right|mean_of_means`."""

import logging
import sys
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LENGTH, WORDS = 12, 20


class Texts(Dataset[Any]):
    def __init__(self, *, even: bool) -> None:
        self.even = even

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        draw = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, WORDS, (LENGTH,), generator=draw)
        labels = tokens.clone()
        labels[: 3 if self.even else 1 + index % 10] = -100
        return tokens, labels


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, WORDS))

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        tokens, labels = batch
        return nn.functional.cross_entropy(self.net(tokens).transpose(1, 2), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(case: str) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(1, verbose=False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        accumulate_grad_batches=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(Texts(even=case == "right"), batch_size=2))


if __name__ == "__main__":
    main(sys.argv[1])
