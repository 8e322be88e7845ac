"""Writing a backup of a live service: a consistent copy of the database, then every file of its runs."""

import os
import secrets
import sqlite3
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from app.clock import now, rfc3339
from app.db import BUSY_TIMEOUT_MS
from app.runs.errors import Conflict, NotFound, refused
from app.settings import Settings
from app.storage.archive import (
    DATABASE,
    FORMAT,
    RUNS,
    BackupInvalid,
    Manifest,
    Member,
    add_file,
    add_manifest,
    check_name,
)
from trainer.contract.files import fsync_directory

PAGES_AT_ONCE: Final = 4096
"""Database pages copied before waiting writers get a turn."""


@dataclass(kw_only=True)
class Contents:
    """What has been written to the archive so far."""

    members: dict[str, Member] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def database_path(settings: Settings) -> Path:
    """Return the file of the database. Raises Refused if it is not a SQLite file."""
    url = settings.database
    if url.get_backend_name() != "sqlite" or not url.database:
        raise refused(
            "DDP_AUDIT_DATABASE_URL",
            "backup and restore support SQLite files; for PostgreSQL use pg_dump and pg_restore, "
            "and copy the runs directory after pg_dump has ended",
        )
    return Path(url.database)


def backup(settings: Settings, target: Path, *, replace: bool = False) -> dict[str, Any]:
    """Write a backup of database and run files to `target` and return its manifest.

    The service may keep running: the database is copied as of one moment, and files only grow afterwards. `target`
    appears only when it is complete. Data sets and the session key are not included. Raises Conflict if `target` exists
    and `replace` is false, NotFound without a database, OSError.
    """
    source = database_path(settings)
    if not source.is_file():
        raise NotFound("no_database", f"there is no database {source}: nothing to back up")
    if target.exists() and not replace:
        raise Conflict("target_exists", f"{target} exists; choose another name, or allow replacing it")
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    copy = aside.with_name(f"{aside.name.removesuffix('.part')}.db.part")
    try:
        schema, runs = _copy_database(source, copy)
        manifest = _write(settings, aside, copy, schema, runs)
        aside.replace(target)
        fsync_directory(target.parent)
    finally:
        aside.unlink(missing_ok=True)
        copy.unlink(missing_ok=True)
    return {
        "file": str(target),
        "bytes": target.stat().st_size,
        "schema_version": manifest.schema_version,
        "runs": manifest.runs,
        "files": len(manifest.members) - 1,
        "missing": manifest.missing,
        "skipped": manifest.skipped,
    }


def _copy_database(source: Path, copy: Path) -> tuple[str, dict[int, bool]]:
    """Copy a live database as of one moment; return its schema, and for each run whether it was started.

    Raises Conflict if it is damaged.
    """
    os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    origin = sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_MS / 1000)
    made = sqlite3.connect(copy)
    try:
        # One read transaction around the steps: otherwise every concurrent write makes SQLite start over.
        origin.execute("BEGIN")
        origin.execute("SELECT count(*) FROM sqlite_master").fetchone()
        origin.backup(made, pages=PAGES_AT_ONCE, sleep=0.01)
        made.execute("PRAGMA journal_mode = DELETE")  # one file, without a log file
        sound = made.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if sound != "ok":
            raise Conflict("database_damaged", f"the copy of the database is damaged: {sound}")
        schema = made.execute("SELECT version_num FROM alembic_version").fetchone()
        if schema is None:
            raise Conflict("no_schema", f"{source} has no schema version; run `ddp-audit migrate` first")
        runs = made.execute("SELECT id, started_at IS NOT NULL FROM run WHERE NOT deleting ORDER BY id").fetchall()
        return str(schema[0]), {int(number): bool(started) for number, started in runs}
    except sqlite3.DatabaseError as error:
        raise Conflict("database_damaged", f"the database {source} cannot be copied: {error}") from None
    finally:
        made.close()
        origin.close()


def _write(settings: Settings, aside: Path, copy: Path, schema: str, runs: dict[int, bool]) -> Manifest:
    contents = Contents()
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as raw:
        with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
            contents.members[DATABASE] = add_file(tar, copy, DATABASE)
            for run_id, started in runs.items():
                folder = settings.runs_dir / str(run_id)
                if folder.is_dir():
                    _add_run(tar, folder, run_id, contents)
                elif started:
                    contents.missing.append(run_id)
            manifest = Manifest(
                format=FORMAT,
                program=version("ddp-audit"),
                schema_version=schema,
                created_at=rfc3339(now()) or "",
                runs=len(runs),
                missing=contents.missing,
                skipped=contents.skipped,
                members=contents.members,
            )
            add_manifest(tar, manifest)
        raw.flush()
        os.fsync(raw.fileno())
    return manifest


def _add_run(tar: tarfile.TarFile, root: Path, run_id: int, contents: Contents) -> None:
    for path in _files(root):
        name = f"{RUNS}/{run_id}/{path.relative_to(root).as_posix()}"
        if path.is_symlink() or not path.is_file() or not _portable(name):
            if path.is_symlink() or path.exists():
                contents.skipped.append(ascii(name)[1:-1])
            continue
        try:
            contents.members[name] = add_file(tar, path, name)
        except FileNotFoundError:  # a pruned old checkpoint, or a deleted run
            continue


def _files(root: Path) -> Iterator[Path]:
    """Yield the entries below a run's folder, except temporary ones."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not _is_aside(name))
        yield from (Path(folder) / name for name in folders if (Path(folder) / name).is_symlink())
        yield from (Path(folder) / name for name in sorted(names) if not _is_aside(name))


def _portable(name: str) -> bool:
    """Return whether a restore accepts this name, and every system can write it."""
    try:
        name.encode()
        check_name(name)
    except (ValueError, BackupInvalid):
        return False
    return True


def _is_aside(name: str) -> bool:
    return name.startswith(".") and name.endswith(".part")
