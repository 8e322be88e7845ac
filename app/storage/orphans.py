"""Orphans in the data directory: folders without a run, runs without a folder, stray files."""

import hashlib
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import structlog
from pydantic import Field
from sqlalchemy import Engine, select
from sqlmodel import col

from app.clock import now
from app.db import Lock, lock, read_session, write_session
from app.documents import Document
from app.formats import many
from app.runs.errors import Conflict
from app.runs.models import AuditEntry, Run
from app.runs.ordering import LARGEST_ID
from app.runs.removal import DELETED, PART, remove_path
from app.runs.states import FINAL
from app.settings import Settings
from app.storage.usage import entries, size_of

QUIET_SECONDS: Final = 600.0
"""Something written more recently may belong to active work."""
ASIDE: Final = ".orphan-"
"""Prefix of folders renamed for removal."""

What = Literal["folder_without_run", "folder_elsewhere", "run_without_folder", "stray_file", "set_aside"]
LEFT_ALONE: Final = frozenset({"folder_elsewhere", "run_without_folder"})
WHY: Final[Mapping[What, str]] = {
    "folder_without_run": "a run's folder, but no run has this number",
    "folder_elsewhere": "named like a run's folder, but no run here has this number; the runs directory is outside "
    "the data directory and may be used by another database, so remove it by hand",
    "run_without_folder": "the run has ended and its folder is gone; delete the run itself if you do not need it",
    "stray_file": "a temporary file of a process that ended before renaming it",
    "set_aside": "renamed for removal by an interrupted deletion, or moved out of the way by a restore",
}

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """One orphan."""

    what: What
    path: Path
    bytes: int
    run_id: int | None = None

    @property
    def removable(self) -> bool:
        """Whether `remove` removes it: rows, and files that may belong to another database, are left to the user."""
        return self.what not in LEFT_ALONE

    @property
    def why(self) -> str:
        """Why it is an orphan."""
        return WHY[self.what]

    def document(self, path: str) -> "OrphanDocument":
        """Return its document, with a path that others may read."""
        named = {"what": self.what, "why": self.why, "path": path}
        return OrphanDocument(**named, bytes=self.bytes, run_id=self.run_id, removable=self.removable)


class OrphanDocument(Document):
    """One orphan."""

    what: What
    why: str
    path: str = Field(description="Below the data or the runs directory.")
    bytes: int
    run_id: int | None
    removable: bool


class OrphanList(Document):
    """Orphans."""

    plan: str = Field(description="Digest of what would be removed.")
    items: list[OrphanDocument]
    bytes: int
    removable_bytes: int


class OrphansRemoved(Document):
    """Removed orphans."""

    removed: list[OrphanDocument]
    bytes: int


def find_orphans(engine: Engine, settings: Settings) -> list[Orphan]:
    """Return all orphans that have not changed for ten minutes; removes nothing.

    Entries of the runs directory with names that the product never uses are ignored.
    """
    with read_session(engine) as session:
        rows = session.execute(select(col(Run.id), col(Run.state), col(Run.started_at), col(Run.deleting))).all()
    known = {row[0] for row in rows}
    own = settings.runs_dir.resolve().is_relative_to(settings.data_dir.resolve())
    folder_without_run: What = "folder_without_run" if own else "folder_elsewhere"
    found: list[Orphan] = []
    for entry in entries(settings.runs_dir):
        if not _quiet(entry):
            continue
        if entry.name.startswith((ASIDE, DELETED, ".replaced-", ".restore-")):
            found.append(Orphan(what="set_aside", path=entry, bytes=_bytes(entry)))
        elif _is_number(entry.name) and int(entry.name) not in known:
            found.append(Orphan(what=folder_without_run, path=entry, bytes=_bytes(entry), run_id=int(entry.name)))
    for run_id, state, started_at, deleting in rows:
        folder = settings.runs_dir / str(run_id)
        if started_at is not None and state in FINAL and not deleting and not folder.exists():
            found.append(Orphan(what="run_without_folder", path=folder, bytes=0, run_id=run_id))
    ended = {row[0] for row in rows if row[1] in FINAL}
    found += _stray_files(settings, ended)
    return found


def _is_number(name: str) -> bool:
    digits = name.isascii() and name.isdigit() and not name.startswith("0")
    return digits and len(name) <= len(str(LARGEST_ID)) and int(name) <= LARGEST_ID


def _quiet(path: Path) -> bool:
    """Return whether a file, or everything in a folder, has been unchanged for ten minutes."""
    latest = time.time() - QUIET_SECONDS
    try:
        if path.lstat().st_mtime >= latest:
            return False
        folders = os.walk(path) if not path.is_symlink() else ()
        # A restore or a checkpoint being written changes nested files, not the folder itself.
        return not any(
            os.lstat(os.path.join(folder, name)).st_mtime >= latest  # noqa: PTH118  # many, and quick
            for folder, inner, names in folders
            for name in [*inner, *names]
        )
    except FileNotFoundError:  # another process is writing there
        return False


def _bytes(path: Path) -> int:
    try:
        return size_of(path).bytes
    except FileNotFoundError:  # has just been removed
        return 0


def _stray_files(settings: Settings, ended: set[int]) -> Iterator[Orphan]:
    """Yield temporary files and checkpoint folders of a writer that died before its rename."""
    for path in entries(settings.data_dir):
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
    return name.startswith(".") and name.endswith(PART)


def orphan_list(engine: Engine, settings: Settings) -> OrphanList:
    """Return the orphans, with the digest of the plan that removes them."""
    return listed(settings, find_orphans(engine, settings))


def listed(settings: Settings, found: Sequence[Orphan]) -> OrphanList:
    """Return orphans as the API returns them, with the digest of the plan that removes them."""
    return OrphanList(
        plan=plan_of(found),
        items=[orphan.document(_place(settings, orphan.path)) for orphan in found],
        bytes=sum(orphan.bytes for orphan in found),
        removable_bytes=sum(orphan.bytes for orphan in found if orphan.removable),
    )


def _place(settings: Settings, path: Path) -> str:
    # Not the full path: readers on the network need not know its location on the machine.
    for name, root in (("runs", settings.runs_dir), ("data", settings.data_dir)):
        if path.is_relative_to(root):
            return _readable(f"{name}/{path.relative_to(root)}")
    return _readable(path.name)


def _readable(name: str) -> str:
    """Return a file name as valid text: a run may use names that are not UTF-8."""
    return os.fsencode(name).decode(errors="backslashreplace")


def plan_of(found: Sequence[Orphan]) -> str:
    """Return the digest of what would be removed: the same entries give the same digest."""
    names = sorted(str(orphan.path) for orphan in found if orphan.removable)
    return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()[:16]


def remove_orphans(engine: Engine, settings: Settings, *, seen: str | None = None, actor: str = "user") -> list[Orphan]:
    """Remove what `find_orphans` finds and may be removed, and return it.

    `seen` is the digest of the plan that was shown: raises Conflict if the plan is different by now; nothing is removed
    then.
    """
    found = find_orphans(engine, settings)
    if seen is not None and seen != plan_of(found):
        count = sum(orphan.removable for orphan in found)
        raise Conflict(
            "plan_changed",
            f"the plan has changed: {many(count, 'orphan')} would be removed now (plan {plan_of(found)}), "
            f"not those of plan {seen[:40]!r}; check the new list first",
        )
    removed = _remove(engine, found)
    if removed:
        detail = f"{len(removed)} orphans, {sum(orphan.bytes for orphan in removed)} bytes"
        with write_session(engine) as session:
            session.add(AuditEntry(at=now(), actor=actor, action="remove_orphans", detail=detail))
    return removed


def _remove(engine: Engine, found: Sequence[Orphan]) -> list[Orphan]:
    """Return what this call has removed, without entries that another process removed or that cannot be removed."""
    removed = []
    for orphan in found:
        if not orphan.removable:
            continue
        try:
            # Renamed first: of two processes that remove the same entry, only one succeeds.
            aside = orphan.path.with_name(f"{ASIDE}{secrets.token_hex(8)}{PART}")
            if orphan.what != "folder_without_run":
                orphan.path.rename(aside)
            elif not _set_aside(engine, orphan, aside):
                continue
            os.utime(aside, follow_symlinks=False)  # otherwise the next list would include it again
            remove_path(aside)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning(
                "orphan cannot be removed",
                action="orphan-stays",
                path=_readable(str(orphan.path)),
                error=error.strerror,
            )
            continue
        removed.append(orphan)
    return removed


def _set_aside(engine: Engine, orphan: Orphan, aside: Path) -> bool:
    """Rename a folder, unless a run has this number by now; return whether it was renamed."""
    # A submission creates its folder before its row is visible, but holds this lock throughout: under the lock a
    # missing row is really missing. Only the rename happens under the lock, however large the folder is.
    with write_session(engine) as session:
        lock(session, Lock.RUN_FOLDERS)
        if session.scalar(select(col(Run.id)).where(col(Run.id) == orphan.run_id)) is not None:
            return False
        orphan.path.rename(aside)
    return True
