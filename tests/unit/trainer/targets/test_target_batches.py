"""Micro-batches of any shape: digests depend on the content alone, and tensors inside are converted."""

from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from trainer.targets.batches import digest, prepared

Pair = namedtuple("Pair", "x y")  # as users write it
CPU = torch.device("cpu")


@dataclass
class Item:
    x: torch.Tensor
    name: str


def shapes(value: float) -> list[Any]:
    tensor = torch.tensor([1.0, value])
    return [tensor, {"x": tensor}, (tensor, 3), [tensor], Pair(tensor, 1), Item(tensor, "a"), UserDict({"x": tensor})]


@pytest.mark.parametrize("place", range(7))
def test_digest_follows_the_content(place: int) -> None:
    assert digest(shapes(2.0)[place]) == digest(shapes(2.0)[place])
    assert digest(shapes(2.0)[place]) != digest(shapes(2.5)[place])


def test_digest_tells_type_shape_and_order() -> None:
    values = [
        torch.zeros(4),
        torch.zeros(2, 2),
        torch.zeros(4).double(),
        torch.zeros(4).long(),
        [0, 1],
        [1, 0],
        None,
        "",
    ]
    assert len({digest(value) for value in values}) == len(values)


@pytest.mark.parametrize("place", range(7))
def test_floating_tensors_are_converted_inside(place: int) -> None:
    batch = shapes(2.0)[place]
    found = prepared(batch, CPU, torch.float64)
    assert type(found) is type(batch)
    tensor = {0: lambda b: b, 1: lambda b: b["x"], 4: lambda b: b.x, 5: lambda b: b.x, 6: lambda b: b["x"]}.get(
        place, lambda b: b[0]
    )(found)
    assert tensor.dtype == torch.float64
    assert prepared(torch.tensor([1]), CPU, torch.float64).dtype == torch.int64
