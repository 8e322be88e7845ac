"""Size of each run's folder; measured once after a run's end and stored."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final

from pydantic import Field
from sqlalchemy import Engine, Select, and_, func, select
from sqlmodel import Session, col

from app.clock import now
from app.db import ASIDE_MS, Unavailable, read_session, write_session
from app.documents import Document
from app.runs.derived import RunFacts
from app.runs.models import Run
from app.runs.queue import hold_runs
from app.runs.states import FINAL

ROWS_AT_ONCE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a folder's content."""

    bytes: int
    files: int


def folder_size(root: Path) -> Size:
    """Return bytes and number of the regular files below `root`; links are not followed, hard links count once.

    Files that disappear in the meantime are left out. A missing folder, or a link, counts as empty.
    """
    seen: set[tuple[int, int]] = set()
    total = files = 0
    pending = [] if root.is_symlink() else [str(root)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                        continue
                    status = entry.stat(follow_symlinks=False)
                    if not S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) in seen:
                        continue
                    seen.add((status.st_dev, status.st_ino))
                    total, files = total + status.st_size, files + 1
        except (FileNotFoundError, NotADirectoryError):
            continue
    return Size(bytes=total, files=files)


def size_of(path: Path) -> Size:
    """Return the size of a folder as `folder_size` counts it, or of a file or link itself.

    Raises FileNotFoundError if it is gone.
    """
    return folder_size(path) if path.is_dir() else Size(bytes=path.lstat().st_size, files=1)


def entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, by name; empty if it does not exist."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def run_sizes(engine: Engine, runs_dir: Path) -> dict[int, Size]:
    """Return the size of every run; runs that have ended are measured once, others every time."""
    query = select(col(Run.id), *_MEASURED)
    return {row[0]: size for row, size in _measured(engine, runs_dir, query, refresh=False)}


# The database decides whether the stored size is newer than the run's end: parsing and comparing ten thousand pairs of
# times here took most of a page's time.
_KNOWN: Final = and_(col(RunFacts.bytes).is_not(None), col(RunFacts.measured_at) > col(Run.finished_at)).label("known")
_MEASURED: Final = (col(Run.state), col(RunFacts.bytes), col(RunFacts.files), _KNOWN)


def _measured(
    engine: Engine, runs_dir: Path, query: Select[*tuple[Any, ...]], *, refresh: bool
) -> list[tuple[Any, Size]]:
    """Return the rows of `query`, whose first column is the run's number and whose last are `_MEASURED`, with sizes."""
    query = query.outerjoin(RunFacts, col(RunFacts.run_id) == col(Run.id)).where(col(Run.deleting).is_(False))
    with read_session(engine) as session:
        rows = session.execute(query).all()
    found: list[tuple[Any, Size]] = []
    fresh: dict[int, Size] = {}
    for row in rows:
        state, kept, files, known = row[-4:]
        if known and not refresh:
            found.append((row, Size(bytes=kept, files=files or 0)))
            continue
        size = folder_size(runs_dir / str(row[0]))
        found.append((row, size))
        if state in FINAL:
            fresh[row[0]] = size
    _keep(engine, fresh)
    return found


def _keep(engine: Engine, fresh: dict[int, Size]) -> None:
    """Store measurements, unless the database is locked or full: the next request then measures again."""
    ids = list(fresh)
    with suppress(*Unavailable):
        for start in range(0, len(ids), ROWS_AT_ONCE):
            some = ids[start : start + ROWS_AT_ONCE]
            with write_session(engine, patience_ms=ASIDE_MS) as session:
                alive = hold_runs(session, some)
                for run_id in some:
                    if run_id in alive:
                        _keep_one(session, run_id, fresh[run_id])


def _keep_one(session: Session, run_id: int, size: Size) -> None:
    facts = session.get(RunFacts, run_id) or RunFacts(run_id=run_id)
    facts.bytes, facts.files, facts.measured_at = size.bytes, size.files, now()
    session.add(facts)


def measured_bytes(session: Session) -> int:
    """Return the bytes of all ended runs, as last measured."""
    return int(session.scalar(select(func.sum(col(RunFacts.bytes)))) or 0)  # PostgreSQL sums to a decimal


class RunUsage(Document):
    """Size of the folder of one run."""

    id: int
    kind: str
    name: str
    state: str
    pinned: bool
    bytes: int
    files: int


class Usage(Document):
    """Size of the folders of all runs."""

    runs: int
    bytes: int
    files: int
    items: list[RunUsage] = Field(description="Largest first.")


def usage(engine: Engine, runs_dir: Path, *, refresh: bool = False) -> Usage:
    """Return the size of every run's folder; with `refresh` everything is measured again."""
    query = select(col(Run.id), col(Run.kind), col(Run.name), col(Run.pinned), *_MEASURED)
    sizes = _measured(engine, runs_dir, query, refresh=refresh)
    sizes.sort(key=lambda item: (-item[1].bytes, item[0][0]))
    items = [
        RunUsage(
            id=row[0],
            kind=row[1],
            name=row[2],
            state=row[4],
            pinned=row[3],
            bytes=size.bytes,
            files=size.files,
        )
        for row, size in sizes
    ]
    held, files = sum(item.bytes for item in items), sum(item.files for item in items)
    return Usage(runs=len(items), bytes=held, files=files, items=items)
