"""Digests of tensors: two sums over the bits, computed where the tensor is, so that any two ranks can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

CHUNK = 1 << 22
"""Elements looked at together: bounds the memory that a digest needs."""
SPREAD = 2654435761
"""An odd constant that makes the second sum depend on every element's place."""


def of_module(torch: Any, module: Any) -> dict[str, str]:
    """Return name -> digest of every parameter of a module."""
    return of_named(torch, ((name, item.detach()) for name, item in module.named_parameters()))


def of_named(torch: Any, named: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Return name -> digest; tensors that have no plain data of this process are left out."""
    sums = {}
    with torch.no_grad():
        for name, tensor in named:
            if plain(tensor):
                sums[name] = (tuple(tensor.shape), str(tensor.dtype), _sums(torch, tensor))
        return {name: _text(shape, dtype, found) for name, (shape, dtype, found) in sums.items()}


def of_generators(torch: Any) -> str:
    """Return a digest of the default random generators, of the CPU and, if it is in use, of this process's GPU."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return hashlib.blake2b(b"".join(state.numpy().tobytes() for state in states), digest_size=8).hexdigest()


def plain(tensor: Any) -> bool:
    """Whether a tensor's values are all here: not sharded, not on the meta device."""
    return type(tensor).__name__ in ("Tensor", "Parameter", "Buffer") and not tensor.is_meta and not tensor.is_sparse


def _sums(torch: Any, tensor: Any) -> Any:
    size = tensor.element_size()
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(size)
    if whole is None or tensor.numel() == 0:
        return torch.zeros(2, dtype=torch.int64)
    flat = tensor.contiguous().view(-1).view(whole)
    total = torch.zeros(2, dtype=torch.int64, device=tensor.device)
    for begin in range(0, flat.numel(), CHUNK):
        part = flat[begin : begin + CHUNK].to(torch.int64)
        place = torch.arange(begin + 1, begin + 1 + part.numel(), device=tensor.device, dtype=torch.int64)
        total[0] += part.sum()
        total[1] += (part * (place * SPREAD)).sum()
    return total


def _text(shape: tuple[int, ...], dtype: str, sums: Any) -> str:
    first, second = (int(value) & (2**64 - 1) for value in sums.tolist())
    return f"{dtype[6:]}{list(shape)}:{first:016x}{second:016x}"
