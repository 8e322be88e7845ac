"""One accumulation window of equal micro-batches: means divided by their number, one optimizer step at the end."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.common.telemetry import Telemetry
from trainer.kinds.cifar.train.setup import autocast

Batch = tuple[Tensor, Tensor]
"""Normalised images (B, 3, 32, 32) and labels (B,)."""


@dataclass(frozen=True, kw_only=True)
class WindowStep:
    """How a window is trained; two modes differ only in `mode`."""

    model: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    telemetry: Telemetry
    mode: str
    precision: str
    device: torch.device

    def run(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """Train one window; return this rank's loss sum (float64) and correct predictions, still on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        for place, (images, labels) in enumerate(batches):
            last = place == len(batches) - 1
            loss, logits = self.micro_batch(
                images, labels, share=len(batches), synchronise=last or self.mode == "every"
            )
            loss_sum += loss.double() * len(labels)
            correct += (logits.argmax(dim=1) == labels).sum()
        self.telemetry.mark("optimizer")
        self.optimizer.step()
        return loss_sum, correct

    def micro_batch(self, images: Tensor, labels: Tensor, *, share: int, synchronise: bool) -> tuple[Tensor, Tensor]:
        """Add one micro-batch's gradient, with forward and backward both inside or both outside `no_sync`.

        Its mean is divided by `share` before the backward pass: means of equal-sized parts average to the whole mean.
        DDP reads the `no_sync` flag in the forward pass, so a forward pass outside would still synchronise.
        """
        with nullcontext() if synchronise else self.model.no_sync():
            loss, logits = self.forward(images, labels)
            self.telemetry.mark("backward")
            torch.autograd.backward(loss / share)
        return loss.detach(), logits.detach()

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss and the logits of one micro-batch."""
        self.telemetry.mark("forward")
        with autocast(self.device, self.precision):
            logits = self.model(images)
            loss = nn.functional.cross_entropy(logits, labels)
        return loss, logits
