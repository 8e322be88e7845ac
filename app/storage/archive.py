"""The form of a backup: a tar file with the database, every run's files, and a manifest with all digests, last.

    database.sqlite      a consistent copy of the live database
    runs/<id>/...        regular files of every run the copy knows
    manifest.json        schema, counts, and size and SHA-256 of every other member

An archive without a manifest is not a backup. Members are read in one pass and written to disk only under names checked
here.
"""

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from app.runs.errors import ServiceError

DATABASE: Final = "database.sqlite"
RUNS: Final = "runs"
MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
PIECE: Final = 1024 * 1024
MANIFEST_BYTES: Final = 256 * 1024 * 1024
RUN_MEMBER: Final = re.compile(r"^runs/[1-9][0-9]{0,18}/[^/].*$", re.DOTALL)


class BackupInvalid(ServiceError):
    """The file is not a complete, undamaged backup; the text says where it fails."""

    status = 422
    title = "Not a valid backup"

    def __init__(self, detail: str) -> None:
        super().__init__("backup_invalid", detail)


class Member(BaseModel):
    """Size and digest of one member."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """Content of `manifest.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int
    program: str
    """Version of the program that wrote it."""
    schema_version: str
    """Schema of the database."""
    created_at: str
    runs: int
    missing: list[int]
    """Runs whose files were deleted while the backup was made."""
    skipped: list[str]
    """Entries that are not regular files, such as links."""
    members: dict[str, Member]


class HashingReader:
    """A file that is hashed while it is read; returns exactly the promised number of bytes."""

    def __init__(self, source: IO[bytes], size: int, name: str) -> None:
        self._source, self._left, self._name = source, size, name
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes. Raises OSError if the file has become shorter."""
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._source.read(wanted)
        if len(data) < wanted:
            raise OSError(f"{self._name} became shorter while it was read; repeat the backup")
        self._left -= len(data)
        self._digest.update(data)
        return data

    def hexdigest(self) -> str:
        """Return the digest of what was read."""
        return self._digest.hexdigest()


def add_file(tar: tarfile.TarFile, path: Path, name: str) -> Member:
    """Add a file with its current content and return size and digest; bytes appended later are not included.

    Raises FileNotFoundError if it is gone, OSError if it shrinks in the meantime.
    """
    # O_NOFOLLOW: if a link has replaced the file since the folder was listed, its target must not be included.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as source:
        status = os.fstat(source.fileno())
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = status.st_size, int(status.st_mtime), 0o600 | (status.st_mode & 0o100)
        reader = HashingReader(source, status.st_size, name)
        tar.addfile(info, reader)
        return Member(bytes=status.st_size, sha256=reader.hexdigest())


def add_manifest(tar: tarfile.TarFile, manifest: Manifest) -> None:
    """Add the manifest, which completes the backup."""
    data = manifest.model_dump_json(indent=1).encode()
    info = tarfile.TarInfo(MANIFEST)
    info.size, info.mode = len(data), 0o600
    tar.addfile(info, io.BytesIO(data))


def check_name(name: str) -> PurePosixPath:
    """Return a member's name as a relative path. Raises BackupInvalid for a path that could leave the target."""
    path = PurePosixPath(name)
    parts = name.split("/")
    unsafe = path.is_absolute() or any(part in {"", ".", ".."} for part in parts) or "\0" in name or "\\" in name
    if unsafe or not (name in {DATABASE, MANIFEST} or RUN_MEMBER.match(name)):
        raise BackupInvalid(f"the member {name[:200]!r} does not belong to a backup; nothing was restored")
    return path


def unpack(archive: Path, target: Path) -> Manifest:
    """Write every member below `target`, check all digests and return the manifest.

    Raises BackupInvalid; `target` is then incomplete, and the caller must remove it. Only regular files are accepted.
    """
    found: dict[str, Member] = {}
    manifest: Manifest | None = None
    try:
        with tarfile.open(archive, "r:*") as tar:
            for info in tar:
                if manifest is not None:
                    raise BackupInvalid(f"the member {info.name[:200]!r} follows the manifest, which must be last")
                source = _source(tar, info, found)
                if info.name == MANIFEST:
                    manifest = _read_manifest(source, info.size)
                    continue
                found[info.name] = _write(source, target.joinpath(*check_name(info.name).parts))
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise BackupInvalid(f"{archive.name} cannot be read completely: {error}") from None
    if manifest is None:
        raise BackupInvalid(f"{archive.name} has no manifest: it is incomplete, or not a backup")
    _compare(manifest, found)
    return manifest


def _source(tar: tarfile.TarFile, info: tarfile.TarInfo, found: dict[str, Member]) -> IO[bytes]:
    check_name(info.name)
    if not info.isreg() or info.issparse():
        raise BackupInvalid(f"the member {info.name[:200]!r} is not a regular file")
    if info.name in found:
        raise BackupInvalid(f"the member {info.name[:200]!r} occurs twice")
    source = tar.extractfile(info)
    if source is None:
        raise BackupInvalid(f"the member {info.name[:200]!r} has no content")
    return source


def _read_manifest(source: IO[bytes], size: int) -> Manifest:
    if size > MANIFEST_BYTES:
        raise BackupInvalid(f"the manifest has {size} bytes, at most {MANIFEST_BYTES} are read")
    manifest = Manifest.model_validate_json(source.read())
    if manifest.format != FORMAT:
        raise BackupInvalid(f"the backup has format {manifest.format}, this program supports {FORMAT}")
    return manifest


def _write(source: IO[bytes], path: Path) -> Member:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as target:
        for piece in pieces(source):
            digest.update(piece)
            size += len(piece)
            target.write(piece)
    return Member(bytes=size, sha256=digest.hexdigest())


def pieces(source: IO[bytes]) -> Iterator[bytes]:
    """Yield the rest of a file."""
    while piece := source.read(PIECE):
        yield piece


def _compare(manifest: Manifest, found: dict[str, Any]) -> None:
    for name, member in manifest.members.items():
        if name not in found:
            raise BackupInvalid(f"{name} is in the manifest but not in the archive")
        if found[name] != member:
            raise BackupInvalid(f"{name} is damaged: its bytes do not match the manifest")
    if strange := sorted(found.keys() - manifest.members.keys()):
        raise BackupInvalid(f"{strange[0][:200]} is in the archive but not in the manifest")
    if DATABASE not in found:
        raise BackupInvalid("the backup contains no database")
