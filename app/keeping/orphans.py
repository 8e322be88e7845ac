"""What lies in the data directory and belongs to nothing: folders without a run, runs without a folder, stray files."""

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from sqlalchemy import Engine, select
from sqlmodel import col

from app.db import read_session, write_session
from app.keeping.usage import folder_size
from app.runs.models import Run
from app.runs.states import FINAL
from app.settings import Settings

QUIET_SECONDS: Final = 600.0
"""Something written more recently may belong to work under way."""
ASIDE: Final = ".orphan-"
"""Prefix of a folder set aside to be removed."""

What = Literal["folder_without_run", "run_without_folder", "stray_file", "set_aside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """One thing without an owner."""

    what: What
    path: Path
    bytes: int
    run_id: int | None = None

    @property
    def removable(self) -> bool:
        """Whether `remove` takes it away: a run's row is the user's to delete."""
        return self.what != "run_without_folder"

    def document(self) -> dict[str, Any]:
        """Return it as JSON carries it."""
        return {
            "what": self.what,
            "path": str(self.path),
            "bytes": self.bytes,
            "run_id": self.run_id,
            "removable": self.removable,
        }


def find_orphans(engine: Engine, settings: Settings) -> list[Orphan]:
    """Return everything without an owner that has been quiet for ten minutes; touches nothing.

    Entries of the runs directory whose names the product never gives are not its own and are not looked at.
    """
    with read_session(engine) as session:
        rows = session.execute(select(col(Run.id), col(Run.state), col(Run.started_at))).all()
    known = {run_id for run_id, _state, _started in rows}
    found: list[Orphan] = []
    for entry in _entries(settings.runs_dir):
        if not _quiet(entry):
            continue
        if entry.name.startswith((ASIDE, ".replaced-", ".restore-")):
            found.append(Orphan(what="set_aside", path=entry, bytes=_bytes(entry)))
        elif _is_number(entry.name) and int(entry.name) not in known:
            found.append(Orphan(what="folder_without_run", path=entry, bytes=_bytes(entry), run_id=int(entry.name)))
    for run_id, state, started_at in rows:
        folder = settings.runs_dir / str(run_id)
        if started_at is not None and state in FINAL and not folder.exists():
            found.append(Orphan(what="run_without_folder", path=folder, bytes=0, run_id=run_id))
    ended = {run_id for run_id, state, _started in rows if state in FINAL}
    found += _stray_files(settings, ended)
    return found


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and not name.startswith("0")


def _quiet(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > QUIET_SECONDS
    except FileNotFoundError:
        return False


def _bytes(path: Path) -> int:
    return folder_size(path).bytes if path.is_dir() else path.lstat().st_size


def _stray_files(settings: Settings, ended: set[int]) -> Iterator[Orphan]:
    """Yield files and checkpoint folders written aside by a writer that died before its rename."""
    for path in _entries(settings.data_dir):
        if _is_aside(path.name) and path.is_file() and not path.is_symlink() and _quiet(path):
            yield Orphan(what="stray_file", path=path, bytes=path.lstat().st_size)
    for run_id in sorted(ended):
        for path in _asides(settings.runs_dir / str(run_id)):
            if _quiet(path):
                yield Orphan(what="stray_file", path=path, bytes=_bytes(path), run_id=run_id)


def _asides(root: Path) -> Iterator[Path]:
    if root.is_symlink():
        return
    for folder, folders, names in os.walk(root):
        yield from (Path(folder) / name for name in [*folders, *names] if _is_aside(name))
        folders[:] = [name for name in folders if not _is_aside(name)]


def _is_aside(name: str) -> bool:
    return name.startswith(".") and name.endswith(".part")


def remove_orphans(engine: Engine, settings: Settings) -> list[Orphan]:
    """Remove what `find_orphans` finds and may be removed, and return it."""
    removed = []
    for orphan in find_orphans(engine, settings):
        if not orphan.removable:
            continue
        if orphan.what == "folder_without_run":
            if not _set_aside(engine, settings, orphan):
                continue
        elif orphan.path.is_dir() and not orphan.path.is_symlink():
            shutil.rmtree(orphan.path)
        else:
            orphan.path.unlink(missing_ok=True)
        removed.append(orphan)
    return removed


def _set_aside(engine: Engine, settings: Settings, orphan: Orphan) -> bool:
    """Remove a folder unless a run has that number by now."""
    aside = settings.runs_dir / f"{ASIDE}{orphan.path.name}-{secrets.token_hex(4)}"
    # A submission makes its folder before its row is visible, but holds the write lock from before until after: under
    # the lock a missing row is really missing. Only the rename happens under it, however large the folder is.
    with write_session(engine) as session:
        if session.scalar(select(col(Run.id)).where(col(Run.id) == orphan.run_id)) is not None:
            return False
        if orphan.path.is_symlink():
            orphan.path.unlink()
            return True
        orphan.path.rename(aside)
    shutil.rmtree(aside)
    return True
