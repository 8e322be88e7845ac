"""One accumulation window and one evaluation in a group of one: means of means, correct losses, no side effects."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.common.distributed import Group
from trainer.common.telemetry import Telemetry
from trainer.contract.paths import AttemptPaths
from trainer.kinds.cifar.data.images import ImageSplit
from trainer.kinds.cifar.data.synthetic import synthetic_images
from trainer.kinds.cifar.train.model import CifarNet
from trainer.kinds.cifar.train.scoring import score
from trainer.kinds.cifar.train.window_step import Batch, WindowStep

PARTS, SIZE = 3, 4


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    dist.init_process_group("gloo", init_method=(tmp_path / "store").as_uri(), rank=0, world_size=1)
    telemetry = Telemetry(AttemptPaths(tmp_path / "attempt"), 0)
    yield Group(rank=0, world_size=1, device=torch.device("cpu"), backend="gloo", telemetry=telemetry)
    dist.destroy_process_group()


def network() -> nn.Module:
    torch.manual_seed(1)
    # Without BatchNorm a window of micro-batches has exactly the gradient of the whole batch.
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)).double()


def batches() -> list[Batch]:
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(PARTS * SIZE, 3, 32, 32, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 10, (PARTS * SIZE,), generator=generator)
    return list(zip(torch.split(images, SIZE), torch.split(labels, SIZE), strict=True))


def step(group: Group, kind: type[WindowStep] = WindowStep, mode: str = "no_sync") -> WindowStep:
    model = DistributedDataParallel(network())
    return kind(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        telemetry=group.telemetry,
        mode=mode,
        precision="fp32",
        device=group.device,
    )


def gradient(trained: WindowStep) -> Tensor:
    found = [item.grad for item in trained.model.parameters() if item.grad is not None]
    return torch.cat([item.flatten() for item in found])


def whole_batch_gradient() -> tuple[Tensor, float, int]:
    model = network()
    images, labels = (torch.cat(list(part)) for part in zip(*batches(), strict=True))
    logits = model(images)
    loss = nn.functional.cross_entropy(logits, labels)
    torch.autograd.backward(loss)
    grads = [item.grad.flatten() for item in model.parameters() if item.grad is not None]
    return torch.cat(grads), float(loss.detach()), int((logits.argmax(dim=1) == labels).sum())


class Undivided(WindowStep):
    """A broken twin: the division by the number of micro-batches is forgotten."""

    def micro_batch(self, images: Tensor, labels: Tensor, *, share: int, synchronise: bool) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        return super().micro_batch(images, labels, share=1, synchronise=synchronise)


@pytest.mark.parametrize("mode", ["every", "no_sync"])
def test_window_has_whole_batch_gradient(mode: str, group: Group) -> None:
    trained = step(group, mode=mode)
    loss_sum, correct = trained.run(batches())
    expected, loss, right = whole_batch_gradient()
    assert torch.allclose(gradient(trained), expected, rtol=1e-10, atol=1e-14)
    # The displayed loss is that of the images, not the divided loss that is back-propagated.
    assert float(loss_sum) / (PARTS * SIZE) == pytest.approx(loss, rel=1e-12)
    assert int(correct) == right


def test_forgotten_division_is_visible(group: Group) -> None:
    trained = step(group, Undivided)
    trained.run(batches())
    assert torch.allclose(gradient(trained), PARTS * whole_batch_gradient()[0], rtol=1e-10, atol=1e-14)


def test_gradients_cleared_once_per_window(group: Group) -> None:
    trained = step(group)
    trained.run(batches())
    first = gradient(trained).clone()
    trained.run(batches())
    assert torch.equal(gradient(trained), first)


def test_evaluation_leaves_no_trace(group: Group) -> None:
    torch.manual_seed(1)
    model = CifarNet().to(memory_format=torch.channels_last)
    images, labels = synthetic_images(1, 1, 30)
    split = ImageSplit(images, labels, group.device)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    found = score(model, split, group, classes=10, precision="fp32")
    assert model.training
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert np.sum(found.confusion) == 30
    assert score(model, split, group, classes=10, precision="fp32") == found
