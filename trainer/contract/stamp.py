"""The stamp of every checkpoint file: its step, its training, its rank, and its tensors.

The stamp is JSON in the first tensor of the file: the digest in the manifest covers it, `torch.load` and `torch.save`
keep it, and it can be read without torch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from trainer.contract.archive import ArchiveInvalid, TensorArchive

STAMP: Final = "stamp"
"""Key of the stamp in a file's content; it must be the first."""
SHARED: Final = "shared.pt"
"""The file with the state that is equal on all ranks."""
UNREADABLE: Final = "it carries no step, so no save of this format wrote it"


def rank_file(rank: int) -> str:
    """Return the name of one rank's own file."""
    return f"rank{rank}.pt"


def file_of(rank: int | None) -> str:
    """Return the name of the file with the state of a rank, or with the shared state (None)."""
    return SHARED if rank is None else rank_file(rank)


class StampInvalid(ValueError):
    """The file has no stamp, or does not match it."""


class Strict(BaseModel):
    """Base of documents read from checkpoints: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Stamp(Strict):
    """Identity of one file."""

    step: int
    """Updates done."""
    lock: str
    """Digest that identifies the training: kind, parameters, data, world size."""
    rank: int | None
    """None for the shared state."""
    tensors: dict[str, str]
    """Type and shape of every tensor of the file but the stamp, in the order they were saved.

    Such as `{"optimizer.0.weight.exp_avg": "float32[8, 4]"}`.
    """
    counters: dict[str, list[float]] = {}
    """The counters of optimizer and schedule."""


class Mismatch(NamedTuple):
    """A tensor that differs between two sides."""

    tensor: str
    text: str
    """Names the tensor, and both types, or both shapes if the types are equal."""


def first_difference(before: Mapping[str, str], after: Mapping[str, str], when: tuple[str, str]) -> Mismatch | None:
    """Return the first tensor that only one side has, or whose type or shape differs.

    The sides are as in `Stamp.tensors`; `when` describes them.
    """
    for name in [*before, *(name for name in after if name not in before)]:
        left, right = before.get(name), after.get(name)
        if left is None or right is None:
            return Mismatch(name, f"{name} exists only {when[left is None]}")
        if left != right:
            both = parts_of(left)[0], parts_of(right)[0]
            if both[0] == both[1]:
                both = f"shape {parts_of(left)[1]}", f"shape {parts_of(right)[1]}"
            return Mismatch(name, f"{name}: {both[0]} {when[0]}, {both[1]} {when[1]}")
    return None


def parts_of(described: str) -> tuple[str, str]:
    """Return type and shape of a tensor described as `float32[8, 4]`."""
    dtype, bracket, shape = described.partition("[")
    return dtype, bracket + shape


def parse_stamp(data: bytes) -> Stamp:
    """Return a stamp from its bytes. Raises StampInvalid."""
    try:
        return Stamp.model_validate_json(data)
    except ValidationError:
        raise StampInvalid(UNREADABLE) from None


def read_stamp(path: Path) -> Stamp:
    """Return the stamp of a file after comparing it with the actual types of the tensors in the file.

    Raises StampInvalid, OSError.
    """
    try:
        with TensorArchive.open(path) as archive:
            stamp, types = parse_stamp(archive.first_storage()), archive.tensor_types()
    except ArchiveInvalid:
        raise StampInvalid(UNREADABLE) from None
    if types is not None and len(types) == len(stamp.tensors) + 1:
        for (name, described), dtype in zip(stamp.tensors.items(), types[1:], strict=True):
            saved, _ = parts_of(described)
            if dtype not in {"", saved}:
                raise StampInvalid(f"{name}: {saved} when it was saved, {dtype} in the file")
    return stamp
