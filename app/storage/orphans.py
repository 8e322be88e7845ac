"""What lies in the data directory and belongs to nothing: folders without a run, runs without a folder, stray files."""

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
from app.db import read_session, write_session
from app.documents import Document
from app.runs.errors import Conflict
from app.runs.models import AuditEntry, Run
from app.runs.ordering import LARGEST_ID
from app.runs.removal import DELETED, PART, remove_path
from app.runs.states import FINAL
from app.settings import Settings
from app.storage.usage import entries, size_of

QUIET_SECONDS: Final = 600.0
"""Something written more recently may belong to work under way."""
ASIDE: Final = ".orphan-"
"""Prefix of what was set aside to be removed."""

What = Literal["folder_without_run", "folder_elsewhere", "run_without_folder", "stray_file", "set_aside"]
LEFT_ALONE: Final = frozenset({"folder_elsewhere", "run_without_folder"})
WHY: Final[Mapping[What, str]] = {
    "folder_without_run": "a run's folder, and no run has that number",
    "folder_elsewhere": "named like a run's folder, and no run here has that number; the runs directory lies outside "
    "the data directory and may serve another database too, so remove it by hand",
    "run_without_folder": "the run has ended and its folder is gone; delete the run itself if it is of no use",
    "stray_file": "written aside by a process that ended before it gave the file its name",
    "set_aside": "set aside to be removed, by a deletion or a restore that was interrupted or asked to keep it",
}

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """One thing without an owner."""

    what: What
    path: Path
    bytes: int
    run_id: int | None = None

    @property
    def removable(self) -> bool:
        """Whether `remove` takes it away: a run's row is the user's to delete, and so is what may be another's."""
        return self.what not in LEFT_ALONE

    @property
    def why(self) -> str:
        """Why it belongs to nothing, in words."""
        return WHY[self.what]

    def document(self, path: str) -> "OrphanDocument":
        """Return it with a path that others may read."""
        named = {"what": self.what, "why": self.why, "path": path}
        return OrphanDocument(**named, bytes=self.bytes, run_id=self.run_id, removable=self.removable)


class OrphanDocument(Document):
    """One thing without an owner."""

    what: What
    why: str
    path: str = Field(description="Below the data or the runs directory.")
    bytes: int
    run_id: int | None
    removable: bool


class OrphanList(Document):
    """Things without an owner."""

    plan: str = Field(description="Name of what would be removed.")
    items: list[OrphanDocument]
    bytes: int
    removable_bytes: int


class OrphansRemoved(Document):
    """What was removed."""

    removed: list[OrphanDocument]
    bytes: int


def find_orphans(engine: Engine, settings: Settings) -> list[Orphan]:
    """Return everything without an owner that has been quiet for ten minutes; touches nothing.

    Entries of the runs directory whose names the product never gives are not its own and are not looked at.
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
    """Return whether nothing was written to a file, or to anything in a folder, for ten minutes."""
    latest = time.time() - QUIET_SECONDS
    try:
        if path.lstat().st_mtime >= latest:
            return False
        folders = os.walk(path) if not path.is_symlink() else ()
        # A restore or a checkpoint being written changes what lies deep inside, not the folder itself.
        return not any(
            os.lstat(os.path.join(folder, name)).st_mtime >= latest  # noqa: PTH118  # many, and quick
            for folder, inner, names in folders
            for name in [*inner, *names]
        )
    except FileNotFoundError:  # somebody works there
        return False


def _bytes(path: Path) -> int:
    try:
        return size_of(path).bytes
    except FileNotFoundError:  # removed a moment ago
        return 0


def _stray_files(settings: Settings, ended: set[int]) -> Iterator[Orphan]:
    """Yield files and checkpoint folders written aside by a writer that died before its rename."""
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
    """Return what has no owner, with the name of the plan that removes it."""
    return listed(settings, find_orphans(engine, settings))


def listed(settings: Settings, found: Sequence[Orphan]) -> OrphanList:
    """Return things without an owner as the API gives them, with the name of the plan that removes them."""
    return OrphanList(
        plan=plan_of(found),
        items=[orphan.document(_place(settings, orphan.path)) for orphan in found],
        bytes=sum(orphan.bytes for orphan in found),
        removable_bytes=sum(orphan.bytes for orphan in found if orphan.removable),
    )


def _place(settings: Settings, path: Path) -> str:
    # Not the whole path: who reads the list over the network need not know where on the machine it lies.
    for name, root in (("runs", settings.runs_dir), ("data", settings.data_dir)):
        if path.is_relative_to(root):
            return _readable(f"{name}/{path.relative_to(root)}")
    return _readable(path.name)


def _readable(name: str) -> str:
    """Return a name of a file as text that can be sent: a run may give names that are not UTF-8."""
    return os.fsencode(name).decode(errors="backslashreplace")


def plan_of(found: Sequence[Orphan]) -> str:
    """Return the name of what would be removed: the same things give the same name."""
    names = sorted(str(orphan.path) for orphan in found if orphan.removable)
    return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()[:16]


def remove_orphans(engine: Engine, settings: Settings, *, seen: str | None = None, actor: str = "user") -> list[Orphan]:
    """Remove what `find_orphans` finds and may be removed, and return it.

    With `seen`, the name `plan_of` gave to what was looked at: raises Conflict when it would by now be something else;
    then nothing is removed.
    """
    found = find_orphans(engine, settings)
    if seen is not None and seen != plan_of(found):
        count = sum(orphan.removable for orphan in found)
        raise Conflict(
            "plan_changed",
            f"by now {count} things would be removed (plan {plan_of(found)}), not those of plan {seen[:40]!r}: "
            "look at the new list first",
        )
    removed = _remove(engine, found)
    if removed:
        detail = f"{len(removed)} orphans, {sum(orphan.bytes for orphan in removed)} bytes"
        with write_session(engine) as session:
            session.add(AuditEntry(at=now(), actor=actor, action="remove_orphans", detail=detail))
    return removed


def _remove(engine: Engine, found: Sequence[Orphan]) -> list[Orphan]:
    """Return what is gone through this call: what somebody else took, or what cannot be removed, is not among it."""
    removed = []
    for orphan in found:
        if not orphan.removable:
            continue
        try:
            # Under a name of its own first: of two who remove the same thing, one does.
            aside = orphan.path.with_name(f"{ASIDE}{secrets.token_hex(8)}{PART}")
            if orphan.what != "folder_without_run":
                orphan.path.rename(aside)
            elif not _set_aside(engine, orphan, aside):
                continue
            os.utime(aside, follow_symlinks=False)  # or the next look would offer it again meanwhile
            remove_path(aside)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("orphan stays", action="orphan-stays", path=_readable(str(orphan.path)), error=error.strerror)
            continue
        removed.append(orphan)
    return removed


def _set_aside(engine: Engine, orphan: Orphan, aside: Path) -> bool:
    """Rename a folder, unless a run has that number by now; return whether it was done."""
    # A submission makes its folder before its row is visible, but holds the write lock from before until after: under
    # the lock a missing row is really missing. Only the rename happens under it, however large the folder is.
    with write_session(engine) as session:
        if session.scalar(select(col(Run.id)).where(col(Run.id) == orphan.run_id)) is not None:
            return False
        orphan.path.rename(aside)
    return True
