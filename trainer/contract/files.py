"""Atomic file writes: a reader sees either the old or the new content, and a deleted run is not brought back.

A run's folder is created by the worker that starts the run, or with the checkpoint it resumes from. All others only
create folders inside it, so a late writer fails if the run was deleted.
"""

import errno
import json
import os
from pathlib import Path
from typing import Any


def fsync_directory(path: Path) -> None:
    """Make a rename inside `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, *, within: Path) -> None:
    """Create `folder` and its missing parents inside `within`, which is never created.

    Raises FileNotFoundError if `within` is gone, ValueError if `folder` is not inside it.
    """
    path = within
    for name in folder.relative_to(within).parts:
        path /= name
        path.mkdir(exist_ok=True)
    if not path.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def write_bytes_atomically(path: Path, data: bytes, *, within: Path | None = None) -> None:
    """Write to a temporary file, flush to disk, rename to `path`. Raises OSError; `path` is then unchanged.

    The folder of `path` must exist; with `within`, a folder above it, the folders in between are created.
    """
    if within is not None:
        make_folder(path.parent, within=within)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with aside.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    fsync_directory(path.parent)


def write_json_atomically(path: Path, document: Any, *, within: Path | None = None) -> None:
    """Write `document` as JSON (non-finite numbers are errors), in the same way as `write_bytes_atomically`."""
    write_bytes_atomically(path, json.dumps(document, allow_nan=False, indent=1).encode() + b"\n", within=within)
