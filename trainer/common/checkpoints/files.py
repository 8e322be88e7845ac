"""Tensor files: serialised once, hashed while they are written, verified before they are unpickled."""

import errno
import hashlib
import io
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, Final, cast

import torch

from trainer.common.checkpoints.errors import CheckpointDamaged, CheckpointNotSaved
from trainer.contract.manifest import FileEntry

OVERLAP_BYTES: Final = 1 << 18
"""From this size on, passing a piece to another thread costs less than it saves."""


class HashingWriter:
    """A binary file that tracks the size and SHA-256 of its content; large pieces are hashed while they are written."""

    def __init__(self, handle: io.BufferedWriter) -> None:
        self._handle = handle
        self._hash = hashlib.sha256()
        self._bytes = 0
        self._hasher = ThreadPoolExecutor(max_workers=1)  # its thread starts with the first large piece

    def write(self, data: Any) -> int:
        """Append `data` (any buffer)."""
        if memoryview(data).nbytes < OVERLAP_BYTES:
            self._hash.update(data)
            written = self._handle.write(data)
        else:
            # Both release the interpreter lock; the buffer is only valid until this call returns, hence the wait.
            hashed = self._hasher.submit(self._hash.update, data)
            try:
                written = self._handle.write(data)
            finally:
                hashed.result()
        self._bytes += written
        return written

    def flush(self) -> None:
        """Pass everything to the operating system."""
        self._handle.flush()

    def close(self) -> None:
        """End the hashing thread; the file remains open."""
        self._hasher.shutdown()

    def entry(self) -> FileEntry:
        """Return size and digest of the content written so far."""
        return FileEntry(bytes=self._bytes, sha256=self._hash.hexdigest())


def write_tensors(path: Path, content: Any) -> FileEntry:
    """Serialise `content` into a new file; `flush` makes it durable.

    Raises CheckpointNotSaved, with the free space if the disk is full; the caller must remove the incomplete file.
    """
    try:
        with path.open("wb") as handle, closing(HashingWriter(handle)) as writer, _without_crc():
            try:
                torch.save(content, cast(IO[bytes], writer))
            except RuntimeError as error:
                # torch wraps an OSError of the underlying file, and its text loses the reason.
                raise _cause(error) from error
            return writer.entry()
    except OSError as error:
        raise CheckpointNotSaved(describe(error, path)) from error


def flush(*paths: Path) -> None:
    """Make files and directories durable, all at once: flushes that wait together share one journal commit.

    Raises CheckpointNotSaved.
    """
    with ThreadPoolExecutor(max_workers=len(paths)) as pool:
        for path, done in [(path, pool.submit(_fsync, path)) for path in paths]:
            try:
                done.result()
            except OSError as error:
                raise CheckpointNotSaved(describe(error, path)) from error


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _without_crc() -> Iterator[None]:
    """Skip the archive's own checksums, which take a fifth of the time: the manifest has a digest of the whole file."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def _cause(error: BaseException) -> BaseException:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return error


def describe(error: OSError, path: Path) -> str:
    """Return one sentence on a failed write: the reason, the file, and the free space if the disk is full."""
    reason = error.strerror or str(error)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return f"{reason}: {path}"
    free = shutil.disk_usage(path.parent if path.parent.exists() else path.anchor).free
    return f"{reason}: {path} ({free} bytes free); free some space or save less often"


def read_tensors(directory: Path, name: str, entry: FileEntry) -> Any:
    """Return the content of a tensor file, on the CPU; exactly the verified bytes are unpickled.

    Raises CheckpointDamaged if the file is missing, has a different size or digest, or contains more than plain
    tensors.
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
        # Random-generator states must remain CPU bytes, so nothing is mapped to another device here.
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointDamaged(f"{directory.name}: {name} cannot be unpickled safely: {error}", name) from error
