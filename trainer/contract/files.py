"""Writing files so that a reader sees the old content or the new, never a half, and nothing where a run was deleted.

A run's folder is made by the worker that starts the run, or with the checkpoint it resumes from. All others make
folders below it at most: a late writer then fails where the run was deleted, and does not bring it back.
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
    """Make `folder` and what is missing between it and `within`, which is never made.

    Raises FileNotFoundError when `within` is gone, ValueError when `folder` is not inside it.
    """
    path = within
    for name in folder.relative_to(within).parts:
        path /= name
        path.mkdir(exist_ok=True)
    if not path.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def write_bytes_atomically(path: Path, data: bytes, *, within: Path | None = None) -> None:
    """Write aside, flush to disk, rename over `path`. Raises OSError; then `path` is as it was.

    The folder of `path` must be there; with `within`, a folder above it, those between are made.
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
    """Write `document` as JSON (non-finite numbers are refused) the way `write_bytes_atomically` does."""
    write_bytes_atomically(path, json.dumps(document, allow_nan=False, indent=1).encode() + b"\n", within=within)
