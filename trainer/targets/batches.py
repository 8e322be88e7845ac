"""Micro-batches of any shape: digests of their content, and their tensors on another device or of another type."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def digest(batch: Any) -> str:
    """Return a digest of the content of a micro-batch: tensors and arrays by their bytes, everything else as text."""
    found = hashlib.sha256()
    for piece in _pieces(batch):
        found.update(piece)
    return found.hexdigest()[:16]


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        yield f"tensor {plain.dtype} {tuple(plain.shape)};".encode()
        yield plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"key {key!r};".encode()
            yield from _pieces(item)
    elif isinstance(value, list | tuple):
        yield f"list {len(value)};".encode()
        for item in value:
            yield from _pieces(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _pieces(getattr(value, field.name))
    elif hasattr(value, "tobytes"):
        yield f"array {getattr(value, 'dtype', '')} {getattr(value, 'shape', '')};".encode()
        yield value.tobytes()
    elif isinstance(value, str | bytes | int | float | bool | None):
        yield f"{type(value).__name__} {value!r};".encode()
    else:
        yield from _attributes(value)


def _attributes(value: Any) -> Iterator[bytes]:
    # An object's own text may contain its address, which differs between processes.
    yield f"object {type(value).__qualname__};".encode()
    for key, item in sorted(getattr(value, "__dict__", {}).items()):
        yield f"key {key};".encode()
        yield from _pieces(item) if item is not value else ()


def prepared(batch: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a micro-batch with its tensors on `device`, floating ones as `dtype`; other objects are unchanged."""
    if isinstance(batch, Tensor):
        return batch.to(device=device, dtype=dtype) if batch.is_floating_point() else batch.to(device)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(prepared(item, device, dtype) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(prepared(item, device, dtype) for item in batch)
    if isinstance(batch, Mapping):
        found = {key: prepared(item, device, dtype) for key, item in batch.items()}
        return found if type(batch) is dict else _rebuilt(batch, found)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = [field.name for field in dataclasses.fields(batch) if field.init]
        return dataclasses.replace(batch, **{name: prepared(getattr(batch, name), device, dtype) for name in fields})
    return batch


def _rebuilt(batch: Any, found: dict[Any, Any]) -> Any:
    try:
        return type(batch)(found)
    except TypeError:
        return found


def model_digest(model: nn.Module) -> str:
    """Return a digest of all parameters and buffers of a model."""
    return digest(dict((*model.named_parameters(), *model.named_buffers())))
