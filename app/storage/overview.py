"""What fills the disk besides runs: the database, data sets and other files, with what is free and the floor."""

from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from app.settings import Settings
from app.storage.cleaning import ACQUIRED, acquired_names
from app.storage.disk import free_bytes
from app.storage.usage import entries, size_of, usage


def storage(engine: Engine, settings: Settings, *, refresh: bool = False) -> dict[str, Any]:
    """Return what `usage` returns, and `free_bytes`, `min_free_bytes`, `database_bytes`, `datasets`, `other_bytes`.

    `other_bytes` is everything else in the data directory: keys, locks, files written aside, folders put there by hand.
    """
    datasets = data_sets(settings)
    database = database_bytes(settings)
    return {
        **usage(engine, settings.runs_dir, refresh=refresh),
        "free_bytes": free_bytes(settings),
        "min_free_bytes": settings.min_free_bytes,
        "database_bytes": database,
        "datasets": datasets,
        "other_bytes": _other_bytes(settings),
    }


def data_sets(settings: Settings) -> list[dict[str, Any]]:
    """Return `{name, bytes, files, acquired}` of every data set, the largest first; sizes are measured each time."""
    acquired = acquired_names(settings)
    found = []
    for path in entries(settings.datasets_dir):
        if path.name == ACQUIRED:
            continue
        held = size_of(path)
        found.append({"name": path.name, "bytes": held.bytes, "files": held.files, "acquired": path.name in acquired})
    return sorted(found, key=lambda item: (-item["bytes"], item["name"]))


def database_bytes(settings: Settings) -> int:
    """Return the bytes of the SQLite file with its log; 0 for a database elsewhere."""
    return sum(path.stat().st_size for path in _database_files(settings) if path.is_file())


def _database_files(settings: Settings) -> list[Path]:
    scheme, _, name = settings.database_url.partition(":///")
    if not scheme.startswith("sqlite") or not name:
        return []
    return [Path(f"{name}{end}") for end in ("", "-wal", "-shm")]


def _other_bytes(settings: Settings) -> int:
    counted = {settings.runs_dir, settings.datasets_dir, *_database_files(settings)}
    return sum(size_of(path).bytes for path in entries(settings.data_dir) if path not in counted)
