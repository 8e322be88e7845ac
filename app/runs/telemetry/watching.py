"""Detecting that something happened to a run, without reading it: cheap enough for ten checks a second."""

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import Engine
from sqlmodel import col, select

from app.db import DataVersion, read_session
from app.runs.models import Run
from app.runs.states import FINAL

WATCH_SECONDS: Final = 0.1
"""Seconds between checks."""
LOG_SECONDS: Final = 0.5
"""Output files grow without a change in the database, so runs that have not ended count as changed this often."""
DELETED: Final = ("deleted",)
QUIET: Final = frozenset({DELETED, *((state.value,) for state in FINAL)})
"""Prefixes of marks of runs whose output no longer grows."""
_LOOKS: Final = round(LOG_SECONDS / WATCH_SECONDS)


class Watch:
    """Finds the runs in which something happened since the last check."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._data_version = DataVersion(engine)
        self._version: object = None
        self._marks: dict[int, tuple[Any, ...]] = {}
        self._looks = 0

    def close(self) -> None:
        """Return its connection; the next check takes another one."""
        self._data_version.close()
        self._version = None

    def changed(self, runs: Collection[int]) -> list[int]:
        """Return those of `runs` that must be read again.

        Raises database errors; call `close` before the next check then.
        """
        self._looks += 1
        if not runs:
            return []
        output = self._looks % _LOOKS == 0
        version = self._data_version.read()
        before = self._marks
        if version != self._version or not before.keys() >= set(runs):
            self._marks = self._read(runs)
            self._version = version
        marks = {run: self._marks[run] for run in runs}
        return [run for run, mark in marks.items() if mark != before.get(run) or (output and mark[:1] not in QUIET)]

    def _read(self, runs: Collection[int]) -> dict[int, tuple[Any, ...]]:
        query = select(Run.id, Run.state, Run.next_event_id, Run.deleting).where(col(Run.id).in_(runs))
        with read_session(self._engine) as session:
            found = {run_id: tuple(mark) for run_id, *mark in session.exec(query)}
        return {run: found.get(run, DELETED) for run in runs}
