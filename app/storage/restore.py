"""Restoring a backup: everything is unpacked to a temporary folder and checked before the target is changed."""

import secrets
import shutil
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.db import create_database_engine, read_session
from app.runs.errors import Conflict, NotFound
from app.runs.workers import all_live_workers
from app.schema import known_versions, migrate, schema_versions
from app.sessions import forget_key
from app.settings import Settings
from app.storage.archive import DATABASE, RUNS, BackupInvalid, Manifest, unpack
from app.storage.backup import database_path


def restore(settings: Settings, archive: Path, *, replace: bool = False) -> dict[str, Any]:
    """Restore a backup into the data directory, migrate its database, and return what was restored.

    With `replace`, existing files are moved to a folder that the answer names, and the user may remove it. Raises
    NotFound without a file, BackupInvalid for a damaged or foreign one, Conflict for a target that is not empty or is
    used by a worker, or for a backup of a newer program. The target is unchanged until everything has been checked.
    """
    if not archive.is_file():
        raise NotFound("no_backup", f"there is no file {archive}")
    database = database_path(settings)
    in_the_way = _in_the_way(settings, database)
    if in_the_way and not replace:
        shown = ", ".join(str(path) for path in in_the_way[:3])
        raise Conflict(
            "target_not_empty",
            f"{settings.data_dir} is not empty: {shown}; restore into an empty data directory, "
            "or allow overwriting existing files",
        )
    _check_nobody_works(settings, database)
    # Next to its final place, so that moving it there is a rename and not a copy.
    staging = settings.runs_dir / f".restore-{secrets.token_hex(4)}"
    staging.mkdir(parents=True)
    try:
        manifest = unpack(archive, staging)
        _check_database(staging / DATABASE, manifest)
        moved = _move_aside(settings, in_the_way)
        _move_in(settings, staging, database)
        forget_key(settings.data_dir)  # otherwise sessions that were signed out after the backup would be valid again
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    before, after = migrate(settings)
    return {
        "runs": manifest.runs,
        "files": len(manifest.members) - 1,
        "created_at": manifest.created_at,
        "schema_version": before,
        "migrated_to": after,
        "missing": manifest.missing,
        "replaced": None if moved is None else str(moved),
    }


def _in_the_way(settings: Settings, database: Path) -> list[Path]:
    """Return existing entries that a restore would overwrite or mix with."""
    files = [Path(f"{database}{suffix}") for suffix in ("", "-wal", "-shm")]
    folders = sorted(settings.runs_dir.iterdir()) if settings.runs_dir.is_dir() else []
    own = [path for path in folders if path.name.isdigit()]
    return [path for path in [*files, *own] if path.exists() or path.is_symlink()]


def _check_nobody_works(settings: Settings, database: Path) -> None:
    if not database.is_file() or database.stat().st_size == 0:
        return
    engine = create_database_engine(settings)
    try:
        if schema_versions(engine)[0] is None:
            return
        with read_session(engine) as session:
            working = all_live_workers(session)
    finally:
        engine.dispose()
    if working:
        where = ", ".join(f"process {worker.pid} on {worker.host}" for worker in working)
        raise Conflict("in_use", f"a worker uses {settings.data_dir} ({where}): stop the service first")


def _check_database(copy: Path, manifest: Manifest) -> None:
    try:
        connection = sqlite3.connect(f"{copy.absolute().as_uri()}?mode=ro", uri=True)
        try:
            sound = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise BackupInvalid(f"the database in the backup cannot be read: {error}") from None
    schema = None if row is None else str(row[0])
    if sound != "ok" or schema != manifest.schema_version:
        raise BackupInvalid(f"the database in the backup is damaged: {sound}, schema {schema}")
    if schema not in known_versions():
        raise Conflict(
            "schema_too_new",
            f"the backup has schema {schema}, this program supports up to {max(known_versions())}: "
            f"it was made by ddp-audit {manifest.program}; update this program, then restore",
        )


def _move_aside(settings: Settings, in_the_way: list[Path]) -> Path | None:
    if not in_the_way:
        return None
    place = settings.runs_dir / f".replaced-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    place.mkdir()
    for path in in_the_way:
        shutil.move(path, place / path.name)
    return place


def _move_in(settings: Settings, staging: Path, database: Path) -> None:
    if (staging / RUNS).is_dir():
        for folder in sorted((staging / RUNS).iterdir()):
            shutil.move(folder, settings.runs_dir / folder.name)
    # The database last: without it the directory does not look like a restored service.
    database.parent.mkdir(parents=True, exist_ok=True)
    aside = database.with_name(f".{database.name}.{secrets.token_hex(4)}.part")
    shutil.move(staging / DATABASE, aside)
    aside.replace(database)
