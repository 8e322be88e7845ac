"""Disk usage besides runs: the database, data sets and other files, with free disk and its minimum."""

from pathlib import Path

from pydantic import Field
from sqlalchemy import Engine, func, select

from app.db import on_server, read_session
from app.documents import Document
from app.settings import Settings
from app.storage.cleaning import acquired_names
from app.storage.disk import free_bytes
from app.storage.usage import Usage, entries, size_of, usage
from trainer.contract.leftovers import is_leftover


class DataSet(Document):
    """A data set in the data sets directory."""

    name: str
    bytes: int
    files: int
    acquired: bool = Field(description="Whether it was downloaded by `acquire`.")


class StorageDocument(Usage):
    """Disk usage."""

    free_bytes: dict[str, int] = Field(description="By directory.")
    min_free_bytes: int
    database_bytes: int
    datasets: list[DataSet] = Field(description="Largest first.")
    other_bytes: int = Field(
        description="Everything else in the data directory: keys, locks, temporary files, your own folders."
    )


def storage(engine: Engine, settings: Settings, *, refresh: bool = False) -> StorageDocument:
    """Return the disk usage; with `refresh` ended runs are measured again."""
    datasets = data_sets(settings)
    database = database_bytes(engine, settings)
    return StorageDocument(
        **dict(usage(engine, settings.runs_dir, refresh=refresh)),
        free_bytes=free_bytes(settings),
        min_free_bytes=settings.min_free_bytes,
        database_bytes=database,
        datasets=datasets,
        other_bytes=_other_bytes(settings),
    )


def data_sets(settings: Settings) -> list[DataSet]:
    """Return every data set; sizes are measured each time. Files left by file managers and archivers do not count."""
    acquired = acquired_names(settings)
    found = []
    for path in entries(settings.datasets_dir):
        if is_leftover(path.name):  # including the file that lists acquired ones
            continue
        held = size_of(path)
        found.append(DataSet(name=path.name, bytes=held.bytes, files=held.files, acquired=path.name in acquired))
    return sorted(found, key=lambda item: (-item.bytes, item.name))


def database_bytes(engine: Engine, settings: Settings) -> int:
    """Return the bytes of the SQLite file with its log, or of the database on its server."""
    with read_session(engine) as session:
        if on_server(session):
            return int(session.scalar(select(func.pg_database_size(func.current_database()))) or 0)
    return sum(path.stat().st_size for path in _database_files(settings) if path.is_file())


def _database_files(settings: Settings) -> list[Path]:
    url = settings.database
    if url.get_backend_name() != "sqlite" or not url.database:
        return []
    return [Path(f"{url.database}{end}") for end in ("", "-wal", "-shm")]


def _other_bytes(settings: Settings) -> int:
    counted = {settings.runs_dir, settings.datasets_dir, *_database_files(settings)}
    others = [path for path in entries(settings.data_dir) if path not in counted]
    others += [path for path in entries(settings.datasets_dir) if is_leftover(path.name)]
    return sum(size_of(path).bytes for path in others)
