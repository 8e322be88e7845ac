"""One digest for a whole tree of tensors and plain values: equal digests, equal bits."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch


def digest(value: Any) -> str:
    """Return the SHA-256 over types, names, shapes and bits of `value`, at any depth.

    Mappings are sorted by the text of their keys. Raises TypeError for anything other than tensors, numbers, text, None
    or containers of these.
    """
    state = hashlib.sha256()
    _feed(state, value)
    return state.hexdigest()


def _feed(state: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        state.update(f"tensor {plain.dtype} {tuple(plain.shape)}:".encode())
        state.update(plain.flatten().view(torch.uint8).numpy())
    elif isinstance(value, Mapping):
        state.update(f"mapping {len(value)}:".encode())
        for key in sorted(value, key=str):
            state.update(f"{type(key).__name__} {key}=".encode())
            _feed(state, value[key])
    elif isinstance(value, list | tuple):
        state.update(f"list {len(value)}:".encode())
        for item in value:
            _feed(state, item)
    elif value is None or isinstance(value, bool | int | float | str):
        state.update(f"{type(value).__name__} {value!r};".encode())
    else:
        raise TypeError(f"no digest for {type(value).__name__}: only tensors, numbers, text and containers of them")
