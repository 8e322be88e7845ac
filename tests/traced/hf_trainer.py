"""transformers' own Trainer with labels that are partly ignored; `python hf_trainer.py right|rank_mean`."""

import os
import sys
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

LENGTH, EXAMPLES = 16, 32


class Texts(Dataset[Any]):
    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> Any:
        draw = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 50, (LENGTH,), generator=draw)
        labels = tokens.clone()
        labels[: 2 + index % 11] = -100
        return {"input_ids": tokens, "labels": labels}


def main(case: str) -> None:
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=4,
            max_steps=3,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            average_tokens_across_devices=case == "right",
            optim="sgd",
            max_grad_norm=0.0,
            dataloader_drop_last=True,
        )
        Trainer(model=model, args=arguments, train_dataset=Texts()).train()


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main(sys.argv[1])
