"""The checkpoints of a folder or a run, and which of them is the newest: one shared rule, without torch.

Within a folder, the highest step is the newest, regardless of file times. Between the folders of a run, which are
different trajectories, that of the active stage comes first, then the run's own, then the others by step.
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
    """Step in the directory name."""
    bytes: int
    """Size of its files on disk."""
    digest: str
    """Digest of the manifest, empty if it cannot be read."""
    pinned: bool
    created_at: float
    """Unix seconds, 0 if the manifest cannot be read."""
    problem: str | None
    """Why it is invalid; None if every digest is correct."""

    @property
    def valid(self) -> bool:
        """Whether training can continue from it."""
        return self.problem is None


def inspect(directory: Path) -> CheckpointInfo:
    """Return the validity of a `step-NNNN` directory, reading every byte. Never raises for a damaged checkpoint."""
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
        with suppress(FileNotFoundError):  # a running training may remove it while we read
            total += file.stat().st_size
    return total


def _inspected(root: Path) -> Iterator[CheckpointInfo]:
    """Yield the validity of every `step-NNNN` directory, newest first; directories removed meanwhile are skipped."""
    for path in step_directories(root):
        info = inspect(path)
        if info.valid or path.exists():
            yield info


def list_checkpoints(root: Path) -> list[CheckpointInfo]:
    """Return every `step-NNNN` directory of a root with its validity, newest step first."""
    return list(_inspected(root))


def newest_valid(root: Path) -> tuple[CheckpointInfo | None, list[CheckpointInfo]]:
    """Return the newest valid checkpoint of a root, and the newer ones that were skipped, with their problems."""
    skipped: list[CheckpointInfo] = []
    for info in _inspected(root):
        if info.valid:
            return info, skipped
        skipped.append(info)
    return None, skipped


def checkpoint_roots(run_root: Path) -> Iterator[Path]:
    """Yield every `checkpoints` folder of a run: its own, then those of its stages sorted by name."""
    for path in (run_root / "checkpoints", *sorted(run_root.glob("*/checkpoints"))):
        if path.is_dir() and path.parent.name not in {"artifacts", "work"}:
            yield path


def newest_of_run(run_root: Path, stage: str | None = None) -> tuple[CheckpointInfo | None, list[CheckpointInfo]]:
    """Return the checkpoint a run continues from, and the invalid ones that precede it.

    `stage` is the active stage, or the last active one.
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
    """Yield every `step-NNNN` directory of a run in the order in which the run would continue from them."""
    own, common = (run_root / stage / "checkpoints" if stage else None), run_root / "checkpoints"
    rest: list[Path] = []
    for root in sorted(checkpoint_roots(run_root), key=lambda root: (root != own, root != common)):
        if root in {own, common}:
            yield from step_directories(root)
        else:
            rest += step_directories(root)
    yield from sorted(rest, key=lambda path: step_of(path) or 0, reverse=True)


def resumable(run_root: Path) -> bool:
    """Return whether a checkpoint has a valid manifest; its files are checked when a run resumes from it."""
    for path in candidates(run_root):
        with suppress(ManifestInvalid, OSError):
            check_spelling(path)
            read_manifest(path)
            return True
    return False


def others(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield entries of a root that are not checkpoints, with the reason; hidden names belong to a save."""
    for path in sorted(root.iterdir()):
        if path.name.startswith(".") or (path.is_dir() and step_of(path) is not None):
            continue
        reason = "its name is not step- and a number" if path.is_dir() else "it is not a directory"
        yield path, f"not a checkpoint: {reason}"
