"""Which checkpoints a folder or a run holds, and which is the newest: one rule for everybody, without torch.

Within a folder the highest step is the newest, whatever its files' times say. Between the folders of a run, which are
different trajectories, that of the stage at work comes first, then the run's own, then the others by their steps.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.contract.manifest import (
    ManifestInvalid,
    check_spelling,
    read_manifest,
    step_directories,
    step_of,
    verify,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """One `step-NNNN` directory and whether it is a checkpoint."""

    path: Path
    step: int
    """From the name of the directory."""
    bytes: int
    """What its files take on disk."""
    digest: str
    """Digest of the manifest, empty when there is none that can be read."""
    pinned: bool
    created_at: float
    """Unix seconds, 0 when the manifest cannot be read."""
    problem: str | None
    """Why it is not valid; None when every digest is right."""

    @property
    def valid(self) -> bool:
        """Whether a training may continue from it."""
        return self.problem is None


def inspect(directory: Path) -> CheckpointInfo:
    """Return what a `step-NNNN` directory is worth, reading every byte of it. Never raises for a bad checkpoint."""
    digest, pinned, created_at, problem = "", False, 0.0, None
    try:
        manifest = read_manifest(directory)
        digest, pinned, created_at = manifest.digest, manifest.pinned, manifest.header.created_at
        verify(directory)
    except ManifestInvalid as error:
        problem = str(error)
    return CheckpointInfo(
        path=directory,
        step=step_of(directory) or 0,
        bytes=_size(directory),
        digest=digest,
        pinned=pinned,
        created_at=created_at,
        problem=problem,
    )


def _size(directory: Path) -> int:
    total = 0
    for file in directory.glob("*"):
        with suppress(FileNotFoundError):  # a training that goes on may remove it under our eyes
            total += file.stat().st_size
    return total


def _inspected(root: Path) -> Iterator[CheckpointInfo]:
    """Yield what every `step-NNNN` directory is worth, newest first; one that is removed meanwhile was never there."""
    for path in step_directories(root):
        info = inspect(path)
        if info.valid or path.exists():
            yield info


def list_checkpoints(root: Path) -> list[CheckpointInfo]:
    """Return every `step-NNNN` directory of a root with its validity, newest step first."""
    return list(_inspected(root))


def newest_valid(root: Path) -> tuple[CheckpointInfo | None, list[CheckpointInfo]]:
    """Return the newest valid checkpoint of a root, and the newer ones that were skipped with their problems."""
    skipped: list[CheckpointInfo] = []
    for info in _inspected(root):
        if info.valid:
            return info, skipped
        skipped.append(info)
    return None, skipped


def checkpoint_roots(run_root: Path) -> Iterator[Path]:
    """Yield every `checkpoints` folder of a run: its own, then those of its stages in order of name."""
    for path in (run_root / "checkpoints", *sorted(run_root.glob("*/checkpoints"))):
        if path.is_dir() and path.parent.name not in {"artifacts", "work"}:
            yield path


def newest_of_run(run_root: Path, stage: str | None = None) -> tuple[CheckpointInfo | None, list[CheckpointInfo]]:
    """Return the checkpoint a run continues from, and those that come before it but are not valid.

    `stage` is the one at work, or the last that was.
    """
    skipped: list[CheckpointInfo] = []
    for path in candidates(run_root, stage):
        info = inspect(path)
        if info.valid:
            return info, skipped
        if path.exists():
            skipped.append(info)
    return None, skipped


def candidates(run_root: Path, stage: str | None = None) -> Iterator[Path]:
    """Yield every `step-NNNN` directory of a run in the order in which it would be continued from."""
    own, common = (run_root / stage / "checkpoints" if stage else None), run_root / "checkpoints"
    rest: list[Path] = []
    for root in sorted(checkpoint_roots(run_root), key=lambda root: (root != own, root != common)):
        if root in {own, common}:
            yield from step_directories(root)
        else:
            rest += step_directories(root)
    yield from sorted(rest, key=lambda path: step_of(path) or 0, reverse=True)


def resumable(run_root: Path) -> bool:
    """Return whether a checkpoint has a valid manifest; its files are checked when somebody resumes."""
    for path in candidates(run_root):
        with suppress(ManifestInvalid, OSError):
            check_spelling(path)
            read_manifest(path)
            return True
    return False


def others(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield what lies beside the checkpoints and is none, with the reason; hidden names belong to a save at work."""
    for path in sorted(root.iterdir()):
        if path.name.startswith(".") or (path.is_dir() and step_of(path) is not None):
            continue
        reason = "its name is not step- and a number" if path.is_dir() else "it is not a directory"
        yield path, f"not a checkpoint: {reason}"
