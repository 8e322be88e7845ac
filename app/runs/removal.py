"""Deleting a run: mark it, then remove its files and rows, so that an interrupted deletion can be completed later."""

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import Any, Final

import structlog
from sqlalchemy import Engine, delete, func
from sqlmodel import col, select

from app.clock import now
from app.db import HOLD, read_session, write_session
from app.runs.errors import Conflict, NotFound
from app.runs.models import AuditEntry, MetricChunk, Run, RunEvent
from app.runs.ordering import LARGEST_ID
from app.runs.states import State
from app.settings import Settings

DELETED: Final = ".deleted-"
"""Prefix of a folder being removed: the run's number follows."""
PART: Final = ".part"
"""Suffix of temporary names, before a rename or during a removal."""
ATTEMPTS: Final = 5
"""Attempts to remove a folder in which another process still writes."""
ROWS_PER_TRANSACTION: Final = 20_000
"""Deleting a million events in one transaction would block the worker."""

log = structlog.get_logger(__name__)


def delete_run(engine: Engine, settings: Settings, run_id: int, *, actor: str, spare_pinned: bool = False) -> None:
    """Remove a run's files and rows.

    Safe to repeat after a crash, and to run concurrently. Raises NotFound; Conflict if it has not ended, if it is
    pinned and `spare_pinned` is set, or if its files cannot be removed: the run is then no longer listed, and the next
    start of the service tries again.
    """
    with write_session(engine) as session:
        run = session.get(Run, run_id, with_for_update=HOLD) if 0 < run_id <= LARGEST_ID else None
        if run is None:
            raise NotFound("unknown_run", f"there is no run {run_id}")
        if not State(run.state).is_final:
            raise Conflict("not_final", f"run {run_id} is {run.state}; cancel it and wait for its end, then delete it")
        if spare_pinned and run.pinned:
            raise Conflict("pinned", f"run {run_id} has been pinned in the meantime")
        if not run.deleting:
            run.deleting = True
            session.add(run)
            detail = f"{run.kind}, {run.state}, {run.name!r}"
            session.add(AuditEntry(at=now(), actor=actor, action="delete", run_id=run_id, detail=detail))
    try:
        _finish(engine, settings, run_id)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise Conflict("files_stay", f"run {run_id} is deleted, but not all of its files: {why}") from error


def finish_deletions(engine: Engine, settings: Settings) -> int:
    """Complete interrupted deletions and return the number of runs removed.

    Files that still cannot be removed are logged: they must not keep the service from starting.
    """
    with read_session(engine) as session:
        ids = [run_id for run_id in session.exec(select(Run.id).where(col(Run.deleting).is_(True))) if run_id]
    gone = 0
    for run_id in ids:
        try:
            _finish(engine, settings, run_id)
        except OSError as error:
            log.warning("files cannot be removed", action="files-stay", run_id=run_id, error=str(error))
        else:
            gone += 1
    return gone


def _finish(engine: Engine, settings: Settings, run_id: int) -> None:
    remove_folder(settings.runs_dir, run_id)
    for table in (RunEvent, MetricChunk):
        while _delete_some(engine, table, run_id):
            pass
    with write_session(engine) as session:
        session.execute(delete(Run).where(col(Run.id) == run_id, col(Run.deleting).is_(True)))


def _delete_some(engine: Engine, table: type[RunEvent | MetricChunk], run_id: int) -> bool:
    number = col(RunEvent.id) if table is RunEvent else col(MetricChunk.first_event_id)
    with write_session(engine) as session:
        lowest: int | None = session.scalar(select(func.min(number)).where(table.run_id == run_id))
        if lowest is None:
            return False
        session.execute(delete(table).where(col(table.run_id) == run_id, number < lowest + ROWS_PER_TRANSACTION))
    return True


def remove_folder(runs_dir: Path, run_id: int) -> None:
    """Remove `<runs dir>/<id>`; a link in its place is removed, never what it points to.

    The folder is renamed first: from then on a late writer, which never creates a run's folder, fails.
    """
    folder, aside = runs_dir / str(run_id), runs_dir / f"{DELETED}{run_id}{PART}"
    remove_path(aside)  # from an interrupted removal
    with contextlib.suppress(FileNotFoundError):
        folder.rename(aside)
    remove_path(aside)


def remove_path(path: Path) -> None:
    """Remove a file, a link (never what it points to) or a folder with all it holds; a missing one is not an error.

    Permissions of folders are restored first. Raises OSError if something cannot be removed.
    """
    if path.is_symlink() or not path.is_dir():
        with contextlib.suppress(IsADirectoryError):  # somebody has just moved a folder here
            path.unlink(missing_ok=True)
            return
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            shutil.rmtree(path, onerror=_unless_gone)
        except PermissionError:
            if not attempts_left:
                raise
            _open_folders(path)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not attempts_left:  # another process has just written into it
                raise
        else:
            return


def _open_folders(root: Path) -> None:
    """Give the owner access to every folder below `root`; links are not followed."""
    root.chmod(0o700)
    for folder, folders, _names in os.walk(root):
        for name in folders:
            path = Path(folder) / name
            if not path.is_symlink():
                path.chmod(0o700)


def _unless_gone(_function: Any, _path: str, failure: tuple[Any, BaseException, Any]) -> None:
    """Ignore files that another process removed first."""
    if not isinstance(failure[1], FileNotFoundError):
        raise failure[1]


def clear_leftovers(runs_dir: Path, run_id: int) -> None:
    """Remove files that a crash before the commit left under a number that is only now assigned.

    Otherwise a new run could continue from a stale checkpoint.
    """
    remove_folder(runs_dir, run_id)
