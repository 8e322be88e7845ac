"""Digests of tensors: two sums over the bits, computed where the tensor is, so that any two ranks can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

WIDTH = 2048
"""Words of 8 bytes in a row: a tensor is summed by rows and by columns, which needs hardly any memory."""
ROW_SPREAD, COLUMN_SPREAD = 2654435761, 2246822519
"""Odd constants that make the second sum depend on every element's place."""
MOST_BYTES = 16 << 20
"""Of all tensors together, looked at in one sampled step."""
WHOLE_BYTES = 64 << 10
"""A tensor up to this size is always looked at as a whole."""
MOST_TENSORS = 4096
"""Tensors with a separate digest; all others share one."""
Piece = tuple[int, int]
"""(index, how many pieces): which of so many equal pieces of every tensor is looked at."""
WHOLE: Piece = (0, 1)


def of_module(torch: Any, module: Any, piece: Piece = WHOLE) -> dict[str, str]:
    """Return name -> digest of every parameter of a module."""
    return of_named(torch, ((name, item.detach()) for name, item in module.named_parameters()), piece)


def of_named(torch: Any, named: Iterable[tuple[str, Any]], piece: Piece = WHOLE) -> dict[str, str]:
    """Return name -> digest; tensors that have no plain data of this process are left out."""
    about, sums = [], []
    with torch.no_grad():
        for name, tensor in named:
            if plain(tensor):
                about.append((name, f"{str(tensor.dtype)[6:]}{list(tensor.shape)}"))
                sums.append(_sums(torch, tensor, piece))
    found = {name: text + ":" + _hex(numbers) for (name, text), numbers in zip(about, _read(torch, sums))}
    if len(found) <= MOST_TENSORS:
        return found
    others = [f"{name} {found.pop(name)}" for name in list(found)[MOST_TENSORS:]]
    shared = hashlib.blake2b("\n".join(others).encode(), digest_size=16).hexdigest()
    return {**found, f"{len(others)} more tensors": shared}


def piece_at(step: int, sizes: int) -> Piece:
    """Return which piece of tensors that have so many bytes together is looked at in a sampled step.

    The same on every rank; from one power of two to the next the pieces take turns.
    """
    count = max(1, -(-sizes // MOST_BYTES))
    return step.bit_length() % count, count


def size(tensors: Iterable[Any]) -> int:
    """Return the bytes of tensors together."""
    return sum(int(item.numel()) * int(item.element_size()) for item in tensors if plain(item))


def of_generators(torch: Any) -> str:
    """Return a digest of the default random generators, of the CPU and, if it is in use, of this process's GPU."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return hashlib.blake2b(b"".join(state.numpy().tobytes() for state in states), digest_size=8).hexdigest()


def plain(tensor: Any) -> bool:
    """Whether a tensor's values are all here: not sharded, not on the meta device."""
    return type(tensor).__name__ in ("Tensor", "Parameter", "Buffer") and not tensor.is_meta and not tensor.is_sparse


def _sums(torch: Any, tensor: Any, piece: Piece) -> Any:
    """Return both sums as a tensor of two, on the tensor's device."""
    if tensor.numel() == 0:
        return torch.zeros(2, dtype=torch.int64, device=tensor.device)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    data = tensor.contiguous().view(-1)
    data = _piece(data, piece).view(torch.uint8)
    words = data.numel() // 8 * 8
    if data.storage_offset() % 8:  # a gradient that is a view into a bucket; words must begin where words begin
        data = data.clone()
    total = _of_words(torch, data[:words].view(torch.int64))
    if words < data.numel():
        total = total + _placed(torch, data[words:].to(torch.int64), ROW_SPREAD)
    return total


def _piece(data: Any, piece: Piece) -> Any:
    index, count = piece
    if count == 1 or data.numel() * data.element_size() <= WHOLE_BYTES:
        return data
    length = -(-data.numel() // count)
    return data[index * length : (index + 1) * length]


def _of_words(torch: Any, words: Any) -> Any:
    rows = words.numel() // WIDTH
    if rows == 0:
        return _placed(torch, words, COLUMN_SPREAD)
    table = words[: rows * WIDTH].view(rows, WIDTH)
    by_row, by_column = table.sum(1), table.sum(0)
    total = _placed(torch, by_row, ROW_SPREAD)
    total[1] += _placed(torch, by_column, COLUMN_SPREAD)[1]
    rest = words[rows * WIDTH :]
    return total + _placed(torch, rest, COLUMN_SPREAD) if rest.numel() else total


def _placed(torch: Any, numbers: Any, spread: int) -> Any:
    """Return the sum of numbers, and the sum in which each is multiplied by its place."""
    place = torch.arange(1, 1 + numbers.numel(), device=numbers.device, dtype=torch.int64) * spread
    return torch.stack([numbers.sum(), (numbers * place).sum()])


def _read(torch: Any, sums: list[Any]) -> list[list[int]]:
    """Return the numbers of all sums, with one transfer for each device."""
    found: list[list[int]] = [[0, 0]] * len(sums)
    for device in {item.device for item in sums}:
        places = [place for place, item in enumerate(sums) if item.device == device]
        for place, numbers in zip(places, torch.stack([sums[place] for place in places]).tolist()):
            found[place] = numbers
    return found


def _hex(numbers: list[int]) -> str:
    first, second = (value & (2**64 - 1) for value in numbers)
    return f"{first:016x}{second:016x}"
