"""Tensor files: serialised once, hashed while they are written, verified before they are unpickled."""

import errno
import hashlib
import io
import os
import shutil
from pathlib import Path
from typing import IO, Any, cast

import torch

from trainer.common.checkpoints.errors import CheckpointDamaged, CheckpointNotSaved
from trainer.contract.manifest import FileEntry


class HashingWriter:
    """A binary file that knows the size and SHA-256 of what went into it."""

    def __init__(self, handle: io.BufferedWriter) -> None:
        self._handle = handle
        self._hash = hashlib.sha256()
        self._bytes = 0

    def write(self, data: Any) -> int:
        """Append `data` (any buffer)."""
        self._hash.update(data)
        written = self._handle.write(data)
        self._bytes += written
        return written

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._handle.flush()

    def entry(self) -> FileEntry:
        """Return size and digest of what was written so far."""
        return FileEntry(bytes=self._bytes, sha256=self._hash.hexdigest())


def write_tensors(path: Path, content: Any) -> FileEntry:
    """Serialise `content` into a new file and flush it to disk.

    Raises CheckpointNotSaved, with the free space when the disk is full; the half-written file stays for the caller.
    """
    try:
        with path.open("wb") as handle:
            writer = HashingWriter(handle)
            try:
                torch.save(content, cast(IO[bytes], writer))
            except RuntimeError as error:
                # torch wraps an OSError of the underlying file, and its text loses the reason.
                raise _cause(error) from error
            handle.flush()
            os.fsync(handle.fileno())
            return writer.entry()
    except OSError as error:
        raise CheckpointNotSaved(describe(error, path)) from error


def _cause(error: BaseException) -> BaseException:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return error


def describe(error: OSError, path: Path) -> str:
    """Return one sentence on a failed write: the reason, the file, and the free space when that is the reason."""
    reason = error.strerror or str(error)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return f"{reason}: {path}"
    free = shutil.disk_usage(path.parent if path.parent.exists() else path.anchor).free
    return f"{reason}: {path} ({free} bytes free); free some space or save less often"


def read_tensors(directory: Path, name: str, entry: FileEntry) -> Any:
    """Return the content of a tensor file, on the CPU; the bytes that are verified are the bytes that are unpickled.

    Raises CheckpointDamaged when the file is missing, has another size or digest, or holds more than plain tensors.
    """
    try:
        data = (directory / name).read_bytes()
    except OSError as error:
        raise CheckpointDamaged(f"{directory.name}: {name} cannot be read: {error.strerror}", name) from None
    if len(data) != entry.bytes:
        text = f"{directory.name}: {name} has {len(data)} bytes, the manifest says {entry.bytes}"
        raise CheckpointDamaged(text, name)
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise CheckpointDamaged(f"{directory.name}: {name} does not have the digest of the manifest", name)
    try:
        # Random-generator states must stay CPU bytes, so nothing is mapped to another device here.
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointDamaged(f"{directory.name}: {name} cannot be unpickled safely: {error}", name) from error
