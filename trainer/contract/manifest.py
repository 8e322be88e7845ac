"""The manifest of a checkpoint: it makes a directory a checkpoint, and can be read and verified without torch.

A checkpoint is `<root>/step-NNNN/`. Its `manifest.json` is written after every other file, lists each of them with size
and SHA-256, and contains its own digest, so that a single flipped bit anywhere in the directory is detected. Every file
contains its step and the lock of its training, so that mixed files of two saves are detected, too.
"""

import hashlib
import itertools
import json
import re
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, ValidationError

from trainer.contract.stamp import Stamp, StampInvalid, Strict, file_of, first_difference, read_stamp

MANIFEST: Final = "manifest.json"
FORMAT: Final = 2
"""2: every file contains its step. Files of format 1 do not, so a mix of two checkpoints could not be detected."""
STEP_DIRECTORY: Final = re.compile(r"step-([0-9]+)")


class ManifestInvalid(ValueError):
    """The directory is not a complete checkpoint; the text names the file and what is wrong with it."""


def _inside(name: str) -> str:
    """Return the name of a checkpoint file. Raises ValueError for a name that leads out of its directory."""
    path = PurePosixPath(name)
    if not name.isprintable() or path.is_absolute() or not path.parts or ".." in path.parts:
        raise ValueError(f"{name[:200]!r} is not a file name inside the checkpoint")
    return name


class FileEntry(Strict):
    """One file of a checkpoint."""

    bytes: int
    sha256: str
    tensors: dict[str, str] = Field(default_factory=dict)
    """Type and shape of every tensor in it, such as `{"optimizer.0.weight.exp_avg": "float32[8, 4]"}`."""


class ParameterEntry(Strict):
    """One trainable tensor, in model order."""

    name: str
    shape: list[int]
    dtype: str


class Header(Strict):
    """Identity of the checkpoint; compared field by field before it is loaded."""

    kind: str
    step: int
    """Finished updates."""
    world_size: int
    data_lock: str
    """Digest of the data and of the ordering rule."""
    lock: str
    """Digest of kind, data lock, world size and every parameter that affects the training; in every file."""
    config: dict[str, Any]
    """Complete parameters of the run, and the device type it was trained on."""
    parameters: list[ParameterEntry]
    optimizer: list[list[str]]
    """Parameter names per parameter group, in the optimizer's order."""
    created_at: float
    """Unix seconds."""
    versions: dict[str, str]


class Manifest(Strict):
    """Content of `manifest.json`."""

    schema_version: int = FORMAT
    header: Header
    files: dict[Annotated[str, AfterValidator(_inside)], FileEntry]
    """By name inside the directory: a restored checkpoint must not cause reads of files elsewhere."""
    pinned: bool = False
    """Kept regardless of the number of newer checkpoints."""
    digest: str = ""
    """SHA-256 of everything above, see `sealed`."""

    def sealed(self) -> "Manifest":
        """Return a copy with the `digest` of its content."""
        return self.model_copy(update={"digest": self._content_digest()})

    def _content_digest(self) -> str:
        content = self.model_dump(mode="json", exclude={"digest"})
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def check_seal(self) -> None:
        """Raise ManifestInvalid if the content does not match its digest."""
        if self.digest != self._content_digest():
            raise ManifestInvalid(f"{MANIFEST} does not match its own digest: it was changed after it was written")

    @property
    def total_bytes(self) -> int:
        """Total size of the listed files."""
        return sum(entry.bytes for entry in self.files.values())


def step_directory(root: Path, step: int) -> Path:
    """Return the directory of the checkpoint after `step` updates."""
    return root / f"step-{step:04d}"


def step_of(directory: Path) -> int | None:
    """Return the step in a directory name, None for any other name."""
    match = STEP_DIRECTORY.fullmatch(directory.name)
    return int(match.group(1)) if match else None


def step_directories(root: Path) -> list[Path]:
    """Return the `step-NNNN` directories of a root, newest step first; none if the root does not exist.

    Steps are compared as numbers, so their number of digits does not matter.
    """
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if path.is_dir() and step_of(path) is not None]
    return sorted(found, key=lambda path: (step_of(path) or 0, path.name), reverse=True)


def spellings(root: Path, step: int) -> list[Path]:
    """Return every directory of a root with this step: `step-0100` and `step-100` are both step 100."""
    return [path for path in step_directories(root) if step_of(path) == step]


def read_manifest(directory: Path) -> Manifest:
    """Read a manifest and verify its digest and step, but not the listed files.

    Raises ManifestInvalid if it is missing, damaged, of a format without stamps, or in the directory of another step.
    """
    try:
        manifest = Manifest.model_validate(_of_this_format(json.loads((directory / MANIFEST).read_bytes())))
    except FileNotFoundError:
        raise ManifestInvalid(f"{MANIFEST} is missing: the save did not finish") from None
    except OSError as error:
        raise ManifestInvalid(f"{MANIFEST} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise ManifestInvalid(
            f"{MANIFEST} is damaged: {'.'.join(map(str, fault['loc']))[:200]!r}: {fault['msg']}"
        ) from None
    except ManifestInvalid:
        raise
    except (ValueError, RecursionError) as error:
        raise ManifestInvalid(f"{MANIFEST} is damaged: {str(error).splitlines()[0]}") from None
    manifest.check_seal()
    named = step_of(directory)
    if named is not None and named != manifest.header.step:
        raise ManifestInvalid(f"{MANIFEST} is of step {manifest.header.step}, the directory says step {named}")
    return manifest


def _of_this_format(document: Any) -> Any:
    version = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(version, int) and version != FORMAT:
        why = "; files of format 1 do not contain their step, so a mix of two steps could not be detected"
        raise ManifestInvalid(
            f"{MANIFEST} has format {version}, only format {FORMAT} can be continued from{why if version == 1 else ''}"
        )
    return document


def check_spelling(directory: Path) -> None:
    """Raise ManifestInvalid if another directory next to this one has the same step."""
    step = step_of(directory)
    named = [] if step is None else [path.name for path in spellings(directory.parent, step)]
    if len(named) > 1:
        raise ManifestInvalid(f"{' and '.join(sorted(named))} are both step {step}: remove all but one of them")


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def check_file(directory: Path, name: str, entry: FileEntry) -> None:
    """Raise ManifestInvalid unless the file exists with the size and digest in the manifest; links are not accepted."""
    path = directory / name
    try:
        status = path.lstat()
        if not S_ISREG(status.st_mode) or not path.resolve().is_relative_to(directory.resolve()):
            raise ManifestInvalid(f"{name} is not a regular file of this checkpoint")
        size = status.st_size
        if size != entry.bytes:
            raise ManifestInvalid(f"{name} has {size} bytes, the manifest says {entry.bytes}")
        if file_digest(path) != entry.sha256:
            raise ManifestInvalid(f"{name} has the correct size but not the digest in the manifest")
    except FileNotFoundError:
        raise ManifestInvalid(f"{name} is missing") from None
    except OSError as error:
        raise ManifestInvalid(f"{name} cannot be read: {error.strerror}") from None


def check_stamp(stamp: Stamp, manifest: Manifest, name: str) -> None:
    """Raise ManifestInvalid unless a file belongs to the checkpoint, is from its rank and contains what is listed.

    Its actual content is compared with its stamp when it is loaded.
    """
    header = manifest.header
    if stamp.step != header.step:
        raise ManifestInvalid(f"{name} is of step {stamp.step}, {MANIFEST} is of step {header.step}")
    if stamp.lock != header.lock:
        raise ManifestInvalid(f"{name} is of another training than {MANIFEST}: its lock is {stamp.lock[:12]}")
    if name != file_of(stamp.rank):
        raise ManifestInvalid(f"{name} has the content of {file_of(stamp.rank)}")
    listed = manifest.files[name].tensors or stamp.tensors
    difference = first_difference(listed, stamp.tensors, (f"in {MANIFEST}", "in the file"))
    if difference is not None:
        raise ManifestInvalid(f"{name}: {difference.text}")


def check_listing(manifest: Manifest) -> None:
    """Raise ManifestInvalid unless the shared file and the file of every rank are listed."""
    for rank in itertools.chain([None], range(manifest.header.world_size)):
        if file_of(rank) not in manifest.files:
            raise ManifestInvalid(f"{MANIFEST} does not list {file_of(rank)}")


def verify(directory: Path) -> Manifest:
    """Verify the manifest and every listed file: size, digest, step, training, rank, types of tensors.

    Raises ManifestInvalid naming the first fault.
    """
    check_spelling(directory)
    manifest = read_manifest(directory)
    check_listing(manifest)
    for name, entry in sorted(manifest.files.items()):
        check_file(directory, name, entry)
        try:
            stamp = read_stamp(directory / name)
        except StampInvalid as error:
            raise ManifestInvalid(f"{name}: {error}") from None
        except OSError as error:
            raise ManifestInvalid(f"{name} cannot be read: {error.strerror}") from None
        check_stamp(stamp, manifest, name)
    return manifest
