"""Checkpoints created, mixed and changed for tests, without torch."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from trainer.contract.files import write_bytes_atomically, write_json_atomically
from trainer.contract.manifest import MANIFEST, FileEntry, Header, Manifest, file_digest, read_manifest
from trainer.contract.stamp import Stamp, file_of

LOCK = "a" * 64
NONE_PICKLED = b"\x80\x02N."


def stamped_file(path: Path, step: int, rank: int | None, *, lock: str = LOCK) -> None:
    """Write a file that contains its stamp and no tensors."""
    stamp = Stamp(step=step, lock=lock, rank=rank, tensors={})
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        archive.writestr("state/data.pkl", NONE_PICKLED)
        archive.writestr("state/data/0", stamp.model_dump_json())
    write_bytes_atomically(path, buffer.getvalue())


def add_checkpoint(
    root: Path, step: int, created_at: float = 0.0, *, kind: str = "resume", world_size: int = 1, name: str = ""
) -> Path:
    """Write a sound checkpoint without tensors and return its directory; `name` is another spelling of it."""
    directory = root / (name or f"step-{step:04d}")
    directory.mkdir(parents=True, exist_ok=True)
    files = {}
    for rank in (None, *range(world_size)):
        path = directory / file_of(rank)
        stamped_file(path, step, rank)
        files[path.name] = _entry(path)
    header = Header(
        kind=kind,
        step=step,
        world_size=world_size,
        data_lock="",
        lock=LOCK,
        config={},
        parameters=[],
        optimizer=[],
        created_at=created_at,
        versions={},
    )
    _seal(directory, Manifest(header=header, files=files))
    return directory


def renew(directory: Path, files: Mapping[str, Any] | None = None, **header: Any) -> None:
    """Make the manifest match the current files, including digests and seal; `header` replaces its fields."""
    manifest = read_manifest(directory)
    listed = {name: entry.tensors for name, entry in manifest.files.items()}
    found = {name: _entry(directory / name, listed.get(name)) for name in (files or manifest.files)}
    new = manifest.model_copy(update={"files": found, "header": manifest.header.model_copy(update=header)})
    _seal(directory, new)


def _entry(path: Path, tensors: Mapping[str, str] | None = None) -> FileEntry:
    return FileEntry(bytes=path.stat().st_size, sha256=file_digest(path), tensors=dict(tensors or {}))


def _seal(directory: Path, manifest: Manifest) -> None:
    write_json_atomically(directory / MANIFEST, manifest.sealed().model_dump(mode="json"))
