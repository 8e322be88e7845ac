"""Checkpoints of a run's folder, as far as they can be judged without torch."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from app.documents import Document
from app.runs.errors import Conflict
from trainer.contract.manifest import (
    CheckpointInfo,
    ManifestInvalid,
    checkpoint_roots,
    list_checkpoints,
    read_manifest,
    step_directories,
    verify,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSource:
    """A valid checkpoint of an ended run."""

    path: Path
    relative: str
    """Relative to the run's folder, such as `checkpoints/step-0050`."""
    files: tuple[str, ...]


def newest_checkpoint(run_root: Path) -> CheckpointSource:
    """Return the checkpoint saved last whose every digest is right.

    Raises Conflict when there is none, naming the newest that is damaged.
    """
    problems = []
    candidates = [path for root in checkpoint_roots(run_root) for path in step_directories(root)]
    for path in sorted(candidates, key=_saved_at, reverse=True):
        relative = path.relative_to(run_root).as_posix()
        try:
            manifest = verify(path)
        except ManifestInvalid as error:
            problems.append(f"{relative}: {error}")
            continue
        return CheckpointSource(path=path, relative=relative, files=tuple(manifest.files))
    found = f"; {problems[0]}" if problems else ""
    raise Conflict(
        "no_checkpoint", f"run {run_root.name} has no valid checkpoint to resume from{found}; retry it without resume"
    )


def _saved_at(path: Path) -> float:
    try:
        return read_manifest(path).header.created_at
    except ManifestInvalid:
        return path.stat().st_mtime


def adopt_checkpoint(source: CheckpointSource, run_root: Path) -> None:
    """Make the checkpoint part of another run's folder: hard links where possible, the manifest last.

    Deleting the old run then takes nothing from the new one, and no bytes are stored twice.
    """
    target = run_root / source.relative
    target.mkdir(parents=True)
    for name in (*source.files, "manifest.json"):
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source.path / name, place)
        except OSError:  # another file system, or one without hard links
            shutil.copy2(source.path / name, place)


class Checkpoint(Document):
    """A checkpoint of a run, every byte of it compared with its digest."""

    path: str
    step: int
    bytes: int
    pinned: bool
    valid: bool
    problem: str = Field(description="Why it is not valid; empty when it is.")


class CheckpointList(Document):
    """Checkpoints, newest first."""

    items: list[Checkpoint]


def check_checkpoints(run_root: Path) -> CheckpointList:
    """Return every checkpoint of a run with its validity."""
    found = [_document(info, run_root) for root in checkpoint_roots(run_root) for info in list_checkpoints(root)]
    return CheckpointList(items=found)


def _document(info: CheckpointInfo, run_root: Path) -> Checkpoint:
    return Checkpoint(
        path=info.path.relative_to(run_root).as_posix(),
        step=info.step,
        bytes=info.bytes,
        pinned=info.pinned,
        valid=info.valid,
        problem=info.problem,
    )
