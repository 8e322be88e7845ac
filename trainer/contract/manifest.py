"""The manifest of a checkpoint: what makes a directory a checkpoint, readable and checkable without torch.

A checkpoint is `<root>/step-NNNN/`. Its `manifest.json` is written after every other file, lists each of them with size
and SHA-256, and carries a digest of itself, so that one flipped bit anywhere in the directory is noticed.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

MANIFEST: Final = "manifest.json"
STEP_DIRECTORY: Final = re.compile(r"^step-(\d{4,})$")


class ManifestInvalid(ValueError):
    """The directory is no complete checkpoint; the text names the file and what is wrong with it."""


def _inside(name: str) -> str:
    """Return the name of a checkpoint's file. Raises ValueError for one that leads out of its directory."""
    path = PurePosixPath(name)
    if not name.isprintable() or path.is_absolute() or not path.parts or ".." in path.parts:
        raise ValueError(f"{name[:200]!r} is no name of a file inside the checkpoint")
    return name


class Strict(BaseModel):
    """Base of every part of a manifest: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FileEntry(Strict):
    """One file of a checkpoint."""

    bytes: int
    sha256: str


class ParameterEntry(Strict):
    """One trainable tensor, in the order the model lists them."""

    name: str
    shape: list[int]
    dtype: str


class Header(Strict):
    """What the checkpoint belongs to; compared field by field before it is loaded."""

    kind: str
    step: int
    """Updates done."""
    world_size: int
    data_lock: str
    """Digest of the data and of the rule that orders it."""
    config: dict[str, Any]
    """Complete parameters of the run, and the device type it trained on."""
    parameters: list[ParameterEntry]
    optimizer: list[list[str]]
    """Parameter names per parameter group, in the optimizer's order."""
    created_at: float
    """Unix seconds."""
    versions: dict[str, str]


class Manifest(Strict):
    """Content of `manifest.json`."""

    schema_version: int = 1
    header: Header
    files: dict[Annotated[str, AfterValidator(_inside)], FileEntry]
    """By names below the directory: a restored checkpoint must not make anybody read what lies elsewhere."""
    pinned: bool = False
    """Kept whatever the number of newer checkpoints."""
    digest: str = ""
    """SHA-256 of everything above, see `sealed`."""

    def sealed(self) -> "Manifest":
        """Return a copy whose `digest` is that of its content."""
        return self.model_copy(update={"digest": self._content_digest()})

    def _content_digest(self) -> str:
        content = self.model_dump(mode="json", exclude={"digest"})
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def check_seal(self) -> None:
        """Raise ManifestInvalid when the content is not what was sealed."""
        if self.digest != self._content_digest():
            raise ManifestInvalid(f"{MANIFEST} does not match its own digest: it was changed after it was written")

    @property
    def total_bytes(self) -> int:
        """Size of all files it lists."""
        return sum(entry.bytes for entry in self.files.values())


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


def step_directory(root: Path, step: int) -> Path:
    """Return where the checkpoint after `step` updates lives."""
    return root / f"step-{step:04d}"


def step_of(directory: Path) -> int | None:
    """Return the step a directory's name claims, None for any other name."""
    match = STEP_DIRECTORY.match(directory.name)
    return int(match.group(1)) if match else None


def read_manifest(directory: Path) -> Manifest:
    """Read a manifest and check its seal and its step, not the files it lists.

    Raises ManifestInvalid when it is missing, damaged, or stands in the directory of another step.
    """
    try:
        manifest = Manifest.model_validate(json.loads((directory / MANIFEST).read_bytes()))
    except FileNotFoundError:
        raise ManifestInvalid(f"{MANIFEST} is missing: the save never finished") from None
    except OSError as error:
        raise ManifestInvalid(f"{MANIFEST} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise ManifestInvalid(
            f"{MANIFEST} is damaged: {'.'.join(map(str, fault['loc']))[:200]!r}: {fault['msg']}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ManifestInvalid(f"{MANIFEST} is damaged: {str(error).splitlines()[0]}") from None
    manifest.check_seal()
    named = step_of(directory)
    if named is not None and named != manifest.header.step:
        raise ManifestInvalid(f"{MANIFEST} is of step {manifest.header.step}, the directory says step {named}")
    return manifest


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def check_file(directory: Path, name: str, entry: FileEntry) -> None:
    """Raise ManifestInvalid unless the file is there with the size and digest the manifest gives; no link is one."""
    path = directory / name
    try:
        status = path.lstat()
        if not S_ISREG(status.st_mode) or not path.resolve().is_relative_to(directory.resolve()):
            raise ManifestInvalid(f"{name} is no plain file of this checkpoint")
        size = status.st_size
        if size != entry.bytes:
            raise ManifestInvalid(f"{name} has {size} bytes, the manifest says {entry.bytes}")
        if file_digest(path) != entry.sha256:
            raise ManifestInvalid(f"{name} has the right size but not the digest of the manifest")
    except FileNotFoundError:
        raise ManifestInvalid(f"{name} is missing") from None
    except OSError as error:
        raise ManifestInvalid(f"{name} cannot be read: {error.strerror}") from None


def verify(directory: Path) -> Manifest:
    """Check the manifest and every file it lists. Raises ManifestInvalid naming the first fault."""
    manifest = read_manifest(directory)
    for name, entry in sorted(manifest.files.items()):
        check_file(directory, name, entry)
    return manifest


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


def step_directories(root: Path) -> list[Path]:
    """Return the `step-NNNN` directories of a root, newest step first; an absent root has none."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if path.is_dir() and step_of(path) is not None]
    return sorted(found, key=lambda path: step_of(path) or 0, reverse=True)


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
