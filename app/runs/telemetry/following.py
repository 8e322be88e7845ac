"""Following a run in-process, by database and files: the counterpart of the API's stream over HTTP."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sqlalchemy import Engine

from app.db import read_session
from app.runs.telemetry.cursor import Cursor
from app.runs.telemetry.feed import pull
from app.runs.telemetry.items import EVERYTHING, Item, Wanted
from app.runs.telemetry.watching import WATCH_SECONDS, Watch

IDLE_SECONDS: Final = 0.3
"""A follower returns an empty reading after this long without anything new."""


def follow(
    engine: Engine, runs_dir: Path, run_id: int, cursor: Cursor, wanted: Wanted = EVERYTHING
) -> Iterator[list[Item]]:
    """Yield readings after `cursor` through the end of the run; no items mean nothing is new.

    Raises NotFound if the run does not exist or was deleted.
    """
    watch = Watch(engine)
    try:
        while not cursor.ended:
            with read_session(engine) as session:
                reading = pull(session, runs_dir, run_id, cursor, wanted)
            cursor = reading.cursor
            yield reading.items
            if not reading.items:
                _wait(watch, run_id)
    finally:
        watch.close()


def _wait(watch: Watch, run_id: int) -> None:
    until = time.monotonic() + IDLE_SECONDS
    while not watch.changed([run_id]) and time.monotonic() < until:
        time.sleep(WATCH_SECONDS)
