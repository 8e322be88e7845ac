"""What the product made and could remove: ended runs, leftovers without a run, acquired data sets."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Engine
from sqlmodel import col, select

from app.db import read_session
from app.runs.errors import refused
from app.runs.models import Run
from app.runs.removal import delete_run, remove_folder
from app.runs.states import FINAL
from app.settings import Settings
from trainer.contract.files import write_json_atomically

ACQUIRED: Final = ".acquired.json"
"""Names in the data sets directory that `acquire` put there; what lies beside them was put there by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removable:
    """One thing that could go."""

    what: str
    path: Path
    bytes: int
    run_id: int | None = None
    """Set when a run in the database goes with it."""


def removable(engine: Engine, settings: Settings, scope: str) -> list[Removable]:
    """Return what `scope` (`generated`, `datasets`) could remove: only what the product made, in the data directory.

    Pinned runs and runs that have not ended stay. Raises Refused where nothing may be removed.
    """
    if scope == "datasets":
        _check_place(settings, settings.datasets_dir, "DATASETS_DIR")
        return list(_datasets(settings))
    _check_place(settings, settings.runs_dir, "RUNS_DIR")
    return [*_runs(engine, settings), *_leftovers(engine, settings)]


def _check_place(settings: Settings, place: Path, name: str) -> None:
    data_dir = settings.data_dir.resolve()
    if data_dir in {Path("/"), Path.home().resolve()} or data_dir in Path(__file__).resolve().parents:
        raise refused("DATA_DIR", f"{data_dir} is no place of ddp-audit alone; nothing is removed there")
    if not place.resolve().is_relative_to(data_dir) or place.resolve() == data_dir:
        raise refused(name, f"{place} lies outside the data directory {data_dir}; remove files there by hand")


def _runs(engine: Engine, settings: Settings) -> Iterator[Removable]:
    query = select(Run).where(col(Run.state).in_(FINAL), col(Run.pinned).is_(False)).order_by(col(Run.id))
    with read_session(engine) as session:
        runs = list(session.exec(query))
    for run in runs:
        path = settings.runs_dir / str(run.id)
        yield Removable(what=f"run {run.id} ({run.kind}, {run.state})", path=path, bytes=size(path), run_id=run.id)


def _leftovers(engine: Engine, settings: Settings) -> Iterator[Removable]:
    with read_session(engine) as session:
        known = {str(number) for number in session.exec(select(Run.id))}
    folders = settings.runs_dir.iterdir() if settings.runs_dir.is_dir() else iter(())
    for path in sorted(folders):
        # Only names that runs have: whatever else lies here was put here by somebody.
        if path.name.isascii() and path.name.isdigit() and path.name not in known:
            yield Removable(what="folder without a run", path=path, bytes=size(path))


def _datasets(settings: Settings) -> Iterator[Removable]:
    for name in sorted(acquired_names(settings)):
        path = settings.datasets_dir / name
        if path.exists():
            yield Removable(what="acquired data set", path=path, bytes=size(path))


def size(path: Path) -> int:
    """Return the bytes of a file, or of everything below a folder; links count nothing."""
    if path.is_symlink() or not path.exists():
        return 0
    if path.is_file():
        return path.stat().st_size
    total = 0
    for folder, _folders, names in os.walk(path):
        for name in names:
            status = (Path(folder) / name).lstat()
            total += status.st_size
    return total


def remove(engine: Engine, settings: Settings, items: Sequence[Removable]) -> None:
    """Remove what `removable` listed."""
    for item in items:
        if item.run_id is not None:
            delete_run(engine, settings, item.run_id, actor="clean")
        elif item.path.parent == settings.runs_dir:
            remove_folder(settings.runs_dir, int(item.path.name))
        elif item.path.is_dir() and not item.path.is_symlink():
            shutil.rmtree(item.path)
        else:
            item.path.unlink(missing_ok=True)


def acquired_names(settings: Settings) -> set[str]:
    """Return what `acquire` has put into the data sets directory."""
    try:
        names = json.loads((settings.datasets_dir / ACQUIRED).read_text())
    except (OSError, ValueError):
        return set()
    return {name for name in names if isinstance(name, str) and Path(name).name == name and name not in {".", ".."}}


def note_acquired(settings: Settings, names: set[str]) -> None:
    """Remember that `acquire` put `names` into the data sets directory."""
    new = names - {ACQUIRED}
    if new:
        write_json_atomically(settings.datasets_dir / ACQUIRED, sorted(acquired_names(settings) | new))
