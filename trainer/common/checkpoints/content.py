"""The content of one checkpoint file: its tensors by name, its stamp, and the checks when it is read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.common.checkpoints.errors import CheckpointDamaged, CheckpointRefused
from trainer.common.checkpoints.files import read_tensors, write_tensors
from trainer.contract.manifest import FileEntry, Manifest, ManifestInvalid, check_stamp
from trainer.contract.stamp import STAMP, Stamp, StampInvalid, file_of, first_difference, parse_stamp


def named_tensors(content: Mapping[str, Any], names: Sequence[str] = ()) -> dict[str, torch.Tensor]:
    """Return every tensor in `content` in the order of serialisation, by names such as `optimizer.0.weight.exp_avg`.

    `names` are those of the optimizer's parameters, in its order. A tensor that occurs twice is serialised once.
    """
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for part, value in content.items():
        if part == "optimizer":
            for key, item in value.items():
                called = dict(enumerate(names)) if key == "state" else {}
                _collect(item, f"{part}." if called else f"{part}.{key}.", called, found, seen)
        else:
            _collect({part: value}, "", {}, found, seen)
    return found


def _collect(
    value: Any, prefix: str, called: Mapping[Any, str], found: dict[str, torch.Tensor], seen: set[int]
) -> None:
    """Add the tensors below a container; `called` maps its keys to other names."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, item in items:
        if isinstance(item, torch.Tensor):
            if id(item) not in seen:
                seen.add(id(item))
                found[f"{prefix}{called.get(key, key)}"] = item
        elif isinstance(item, Mapping | list | tuple):
            _collect(item, f"{prefix}{called.get(key, key)}.", {}, found, seen)


def described(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return type and shape of every tensor, such as `float32[8, 4]`."""
    return {name: f"{tensor.dtype}{list(tensor.shape)}".removeprefix("torch.") for name, tensor in tensors.items()}


def counters(content: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the distinct step counts kept by optimizer and schedule, in ascending order."""
    states = content.get("optimizer", {}).get("state", {}).values()
    steps = [state["step"] for state in states if "step" in state]
    found = {"optimizer.step": steps, "scheduler.last_epoch": [(content.get("scheduler") or {}).get("last_epoch")]}
    numbers = {name: {float(value) for value in values if _is_number(value)} for name, values in found.items()}
    return {name: sorted(values) for name, values in numbers.items() if values}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def write_part(
    directory: Path, content: Mapping[str, Any], names: Sequence[str], *, step: int, lock: str, rank: int | None
) -> FileEntry:
    """Write one file of a checkpoint, its stamp in front, and return its line in the manifest; flush it afterwards.

    `names` are as in `named_tensors`, `rank` is as in `Stamp`. Raises CheckpointNotSaved.
    """
    tensors = described(named_tensors(content, names))
    stamp = Stamp(step=step, lock=lock, rank=rank, tensors=tensors, counters=counters(content))
    data = bytearray(stamp.model_dump_json().encode())
    entry = write_tensors(directory / file_of(rank), {STAMP: torch.frombuffer(data, dtype=torch.uint8), **content})
    return entry.model_copy(update={"tensors": tensors})


def read_part(directory: Path, name: str, manifest: Manifest) -> dict[str, Any]:
    """Return the content of one file of a checkpoint, after comparing it with digest, manifest and its own stamp.

    Raises CheckpointDamaged for a file that is incomplete or of another step, training or rank; CheckpointRefused for
    state whose type or shape differs from the saved one, naming both.
    """
    read = read_tensors(directory, name, manifest.files[name])
    content: dict[str, Any] = read if isinstance(read, dict) else {}
    where = f"{directory.name}: {name}"
    try:
        carried = content.pop(STAMP, None)
        stamp = parse_stamp(carried.numpy().tobytes() if isinstance(carried, torch.Tensor) else b"")
        check_stamp(stamp, manifest, name)
    except StampInvalid as error:
        raise CheckpointDamaged(f"{where}: {error}", name) from None
    except ManifestInvalid as error:
        raise CheckpointDamaged(f"{directory.name}: {error}", name) from None
    names = [item for group in manifest.header.optimizer for item in group]
    check_tensors(stamp.tensors, described(named_tensors(content, names)), where, ("when it was saved", "in the file"))
    _check_counters(stamp, counters(content), where)
    return content


def check_tensors(
    before: Mapping[str, str], after: Mapping[str, str], where: str, when: tuple[str, str], *, common: bool = False
) -> None:
    """Raise CheckpointRefused for the first tensor whose type or shape differs, or that only one side has.

    Both sides are as from `described`. With `common`, tensors of only one side are ignored.
    """
    if common:
        before, after = ({name: side[name] for name in before if name in after} for side in (before, after))
    difference = first_difference(before, after, when)
    if difference is not None:
        raise CheckpointRefused(f"{where}: {difference.text}", difference.tensor)


def _check_counters(stamp: Stamp, found: Mapping[str, list[float]], where: str) -> None:
    for name, values in stamp.counters.items():
        if found.get(name) != values:
            ours, theirs = (
                ", ".join(f"{value:g}" for value in side) or "none" for side in (values, found.get(name, []))
            )
            raise CheckpointRefused(
                f"{where}: {name} is {theirs}, it was {ours} when step {stamp.step} was saved", name
            )
