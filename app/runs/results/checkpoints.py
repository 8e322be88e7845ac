"""Checkpoints in a run's folder, as far as they can be checked without torch."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from app.documents import Document
from app.runs.errors import Conflict
from trainer.contract.checkpoints import CheckpointInfo, checkpoint_roots, list_checkpoints, newest_of_run, others
from trainer.contract.manifest import read_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSource:
    """A valid checkpoint of an ended run."""

    path: Path
    relative: str
    """Relative to the run's folder, such as `checkpoints/step-0050`."""
    files: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    """Newer checkpoints, each with its problem."""


def newest_checkpoint(run_root: Path, stage: str | None = None) -> CheckpointSource:
    """Return the checkpoint to continue from, for a run whose last active stage was `stage`.

    Raises Conflict if there is none, naming the problem of the newest.
    """
    found, skipped = newest_of_run(run_root, stage)
    problems = tuple(f"{info.path.relative_to(run_root).as_posix()}: {info.problem}" for info in skipped)
    if found is None:
        newest = f"; {problems[0]}" if problems else ""
        raise Conflict(
            "no_checkpoint",
            f"run {run_root.name} has no valid checkpoint to resume from{newest}; retry it without resume",
        )
    return CheckpointSource(
        path=found.path,
        relative=found.path.relative_to(run_root).as_posix(),
        files=tuple(read_manifest(found.path).files),
        skipped=problems,
    )


def adopt_checkpoint(source: CheckpointSource, run_root: Path) -> None:
    """Make the checkpoint part of another run's folder: hard links if possible, the manifest last.

    Deleting the old run then removes nothing from the new one, and no bytes are stored twice.
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
    """A checkpoint of a run, with every byte compared with its digest; or another entry next to the checkpoints."""

    path: str
    step: int | None = Field(description="Null for an entry that is not a checkpoint.")
    bytes: int
    pinned: bool
    valid: bool
    problem: str = Field(description="Why it is not valid; empty if it is valid.")


class CheckpointList(Document):
    """Checkpoints, newest first; other entries follow the checkpoints of their folder."""

    items: list[Checkpoint]


def check_checkpoints(run_root: Path) -> CheckpointList:
    """Return every checkpoint of a run with its validity, and entries that are not checkpoints."""
    items: list[Checkpoint] = []
    for root in checkpoint_roots(run_root):
        items += [_document(info, run_root) for info in list_checkpoints(root)]
        items += [
            Checkpoint(
                path=path.relative_to(run_root).as_posix(),
                step=None,
                bytes=0,
                pinned=False,
                valid=False,
                problem=reason,
            )
            for path, reason in others(root)
        ]
    return CheckpointList(items=items)


def _document(info: CheckpointInfo, run_root: Path) -> Checkpoint:
    return Checkpoint(
        path=info.path.relative_to(run_root).as_posix(),
        step=info.step,
        bytes=info.bytes,
        pinned=info.pinned,
        valid=info.valid,
        problem=info.problem or "",
    )
