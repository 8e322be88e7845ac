"""Writing files so that a reader sees the old content or the new, never a half."""

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


def write_bytes_atomically(path: Path, data: bytes) -> None:
    """Write aside, flush to disk, rename over `path`. Raises OSError; then `path` is as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
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


def write_json_atomically(path: Path, document: Any) -> None:
    """Write `document` as JSON (non-finite numbers are refused) the way `write_bytes_atomically` does."""
    write_bytes_atomically(path, json.dumps(document, allow_nan=False, indent=1).encode() + b"\n")
