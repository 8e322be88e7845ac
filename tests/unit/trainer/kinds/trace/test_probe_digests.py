"""Digests in the probe: equal bits, equal digests; one bit elsewhere, another digest."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trainer.kinds.trace.params import SITE

SIZES = (1, 3, 100, 2 * 2048, 4 * 2048 + 1, 5 * 2048 + 77)


@pytest.fixture(scope="module")
def digests() -> ModuleType:
    path = Path(SITE) / "ddp_audit_probe" / "digests.py"
    spec = importlib.util.spec_from_file_location("probe_digests", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of(digests: ModuleType, tensor: torch.Tensor, *piece: tuple[int, int]) -> str:
    return str(digests.of_named(torch, [("tensor", tensor)], *piece)["tensor"])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_bit_is_seen_wherever_it_is(digests: ModuleType, size: int, dtype: torch.dtype) -> None:
    tensor = torch.randn(size).to(dtype)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    for place in {0, size // 2, size - 1}:
        other = tensor.clone()
        other.view(bits)[place] ^= 1
        assert of(digests, other) != of(digests, tensor)


@pytest.mark.parametrize("size", SIZES[2:])
def test_order_counts(digests: ModuleType, size: int) -> None:
    tensor = torch.randn(size)
    for one, other in ((0, 1), (0, size - 1), (3, size // 2)):
        swapped = tensor.clone()
        swapped[[one, other]] = tensor[[other, one]]
        assert of(digests, swapped) != of(digests, tensor)
    if size >= 2 * 4096:
        rows = tensor.clone()
        rows[:4096], rows[4096:8192] = tensor[4096:8192], tensor[:4096]
        assert of(digests, rows) != of(digests, tensor)


@pytest.mark.parametrize("size", SIZES)
def test_where_a_tensor_lies_does_not_count(digests: ModuleType, size: int) -> None:
    tensor = torch.randn(size)
    for offset in (1, 2, 3):  # as a gradient in a bucket
        bucket = torch.zeros(size + offset)
        bucket[offset:] = tensor
        assert of(digests, bucket[offset:]) == of(digests, tensor)


def test_shape_and_type_count(digests: ModuleType) -> None:
    values = torch.zeros(6)
    assert len({of(digests, item) for item in (values, values.view(2, 3), values.to(torch.int32))}) == 3


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0),
        torch.tensor(3),
        torch.ones(5, dtype=torch.bool),
        torch.randn(5, dtype=torch.complex64),
        torch.randn(4, 6).t(),
        torch.randn(9).to(torch.float8_e4m3fn),
    ],
)
def test_any_tensor_has_one(digests: ModuleType, tensor: torch.Tensor) -> None:
    assert of(digests, tensor) == of(digests, tensor.clone())


def test_pieces_of_a_large_model_take_turns(digests: ModuleType) -> None:
    sizes = 5 * digests.MOST_BYTES - 100
    pieces = [digests.piece_at(1 << power, sizes) for power in range(10)]
    assert {count for _, count in pieces} == {5}
    assert sorted(index for index, _ in pieces) == sorted([*range(5), *range(5)])
    assert digests.piece_at(8, digests.MOST_BYTES) == digests.WHOLE


def test_pieces_cover_a_tensor(digests: ModuleType) -> None:
    tensor = torch.randn(digests.WHOLE_BYTES // 4 + 7)
    for place in (0, 5000, 12_345, tensor.numel() - 1):
        other = tensor.clone()
        other[place] += 1
        changed = [index for index in range(3) if of(digests, other, (index, 3)) != of(digests, tensor, (index, 3))]
        assert len(changed) == 1


def test_small_tensors_are_never_cut(digests: ModuleType) -> None:
    tensor = torch.randn(100)
    assert of(digests, tensor, (1, 7)) == of(digests, tensor)


def test_names_beyond_the_most_share_a_digest(digests: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "MOST_TENSORS", 3)
    tensors = {f"layer {number}": torch.randn(4) for number in range(6)}
    found = digests.of_named(torch, tensors.items())
    assert list(found) == ["layer 0", "layer 1", "layer 2", "3 more tensors"]
    tensors["layer 5"][0] += 1
    other = digests.of_named(torch, tensors.items())
    assert [name for name in found if found[name] != other[name]] == ["3 more tensors"]
