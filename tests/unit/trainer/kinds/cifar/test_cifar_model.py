"""The network of the cifar kind: its size, its modes, and recomputation without side effects."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from trainer.kinds.cifar.train.model import CifarNet


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(("classes", "parameters"), [(10, 558_538), (2, 558_538 - 8 * 257), (100, 558_538 + 90 * 257)])
def test_parameter_count_by_classes(classes: int, parameters: int) -> None:
    assert count(CifarNet(classes)) == parameters


def test_layers_as_described() -> None:
    convolutions = [layer for layer in CifarNet().modules() if isinstance(layer, nn.Conv2d)]
    assert [(layer.in_channels, layer.out_channels) for layer in convolutions] == [
        (3, 64), (64, 64), (64, 128), (128, 128), (128, 256),
    ]  # fmt: skip
    assert all(layer.kernel_size == (3, 3) and layer.bias is None for layer in convolutions)
    assert CifarNet()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def one_step(network: CifarNet, images: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    for _ in range(2):
        cross_entropy(network(images), targets).backward()  # type: ignore[no-untyped-call]
    gradients = {f"grad {name}": item.grad for name, item in network.named_parameters() if item.grad is not None}
    return {**gradients, **dict(network.named_buffers())}


def test_checkpointing_changes_no_bit() -> None:
    torch.manual_seed(3)
    plain = CifarNet()
    saving = copy.deepcopy(plain)
    saving.activation_checkpointing = True
    images, targets = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    expected, found = one_step(plain, images, targets), one_step(saving, images, targets)
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


def test_checkpointing_guard_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    monkeypatch.setattr("trainer.kinds.cifar.train.model.statistics_kept", lambda _block: nullcontext())
    torch.manual_seed(3)
    plain = CifarNet()
    saving = copy.deepcopy(plain)
    saving.activation_checkpointing = True
    images, targets = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    expected, found = one_step(plain, images, targets), one_step(saving, images, targets)
    assert not torch.equal(expected["blocks.0.1.running_mean"], found["blocks.0.1.running_mean"])
