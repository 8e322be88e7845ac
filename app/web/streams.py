"""Streams: one watcher notices what changed in the database, and every open stream of a run shares its reading.

    with live.channel(run_id) as channel:
        tick = channel.tick
        ...                                     # read and send
        tick = await channel.beyond(tick, 15)   # returns when something happened, or after 15 s

`live.closing` turns true when the service is asked to stop: streams then end at once and their clients come back later.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import orjson
import structlog
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool

from app.db import read_session
from app.runs.errors import NotFound
from app.runs.states import FINAL
from app.runs.telemetry.cursor import Cursor
from app.runs.telemetry.feed import Item, pull
from app.settings import Settings

WATCH_SECONDS: Final = 0.1
LOG_SECONDS: Final = 0.5
"""Output files grow without a change in the database; they are looked at this often."""
HEARTBEAT_SECONDS: Final = 15.0
HEARTBEAT: Final = b": still here\n\n"
RETRY: Final = b"retry: 1000\n\n"
FINAL_MARKS: Final = frozenset({("deleted",), *((state.value,) for state in FINAL)})
"""First parts of marks of runs whose output grows no more."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pulled:
    """Items of one reading, encoded once for all streams that stand at the same place."""

    frames: bytes
    cursor: Cursor


class Channel:
    """What open streams of one run share: a tick that counts changes, and the readings made in this tick."""

    def __init__(self) -> None:
        self.tick = 0
        self.listeners = 0
        self.readings: dict[Cursor, asyncio.Task[Pulled]] = {}
        self._changed = asyncio.Event()

    def advance(self) -> None:
        """Tell every listener that something happened."""
        self.tick += 1
        self.readings.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    async def beyond(self, tick: int, timeout: float) -> int:  # a heartbeat, not a failure
        """Return the present tick as soon as it is not `tick` any more, or after `timeout` seconds."""
        if self.tick == tick:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), timeout)
        return self.tick


class Live:
    """All open streams of one application."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.closing = False
        self._engine, self._settings = engine, settings
        self._channels: dict[int, Channel] = {}
        self._watcher: Watcher | None = None

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return sum(channel.listeners for channel in self._channels.values())

    @contextmanager
    def channel(self, run_id: int) -> Iterator[Channel]:
        """Listen to a run; call it inside the event loop."""
        channel = self._channels.setdefault(run_id, Channel())
        channel.listeners += 1
        self._watch()
        try:
            yield channel
        finally:
            channel.listeners -= 1
            if not channel.listeners:
                self._channels.pop(run_id, None)

    def _watch(self) -> None:
        if self._watcher is None and not self.closing:
            loop = asyncio.get_running_loop()
            self._watcher = Watcher(self._engine, lambda: list(self._channels), self._notify(loop))
            self._watcher.start()

    def _notify(self, loop: asyncio.AbstractEventLoop) -> Callable[[list[int]], None]:
        def advance(changed: list[int]) -> None:
            for run_id in changed:
                if run_id in self._channels:
                    self._channels[run_id].advance()

        def notify(changed: list[int]) -> None:
            if changed and not loop.is_closed():
                loop.call_soon_threadsafe(advance, changed)

        return notify

    def close(self) -> None:
        """End every stream; safe to call twice, and from a signal handler's callback in the event loop."""
        self.closing = True
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None
        for channel in list(self._channels.values()):
            channel.advance()

    async def frames(self, run_id: int, cursor: Cursor) -> AsyncIterator[bytes]:
        """Yield the server-sent events of a run from `cursor` through its end."""
        yield RETRY
        with self.channel(run_id) as channel:
            while not self.closing:
                tick = channel.tick
                try:
                    pulled = await self._read(channel, run_id, cursor)
                except NotFound:  # deleted while it was watched
                    return
                if pulled.frames:
                    cursor = pulled.cursor
                    yield pulled.frames
                    if cursor.ended:
                        return
                elif await channel.beyond(tick, HEARTBEAT_SECONDS) == tick:
                    yield HEARTBEAT

    async def _read(self, channel: Channel, run_id: int, cursor: Cursor) -> Pulled:
        reading = channel.readings.get(cursor)
        if reading is None:
            reading = asyncio.create_task(run_in_threadpool(self._pull, run_id, cursor))
            channel.readings[cursor] = reading
        return await asyncio.shield(reading)  # a client that leaves takes nothing from the others

    def _pull(self, run_id: int, cursor: Cursor) -> Pulled:
        with read_session(self._engine) as session:
            items = pull(session, self._settings.runs_dir, run_id, cursor)
        frames = b"".join(encode(item) for item in items)
        return Pulled(frames, items[-1].cursor if items else cursor)


def encode(item: Item) -> bytes:
    """Return one item as a server-sent event."""
    head = f"id: {item.cursor.encode()}\nevent: {item.type}\ndata: ".encode()
    return head + orjson.dumps(item.data) + b"\n\n"


class Watcher(threading.Thread):
    """Looks at the database ten times a second and names the watched runs in which something happened."""

    def __init__(self, engine: Engine, watched: Callable[[], list[int]], notify: Callable[[list[int]], None]) -> None:
        super().__init__(name="stream-watcher", daemon=True)
        self._engine, self._watched, self._notify = engine, watched, notify
        self._stopped = threading.Event()
        self._marks: dict[int, tuple[Any, ...]] = {}
        self._version: Any = None

    def stop(self) -> None:
        """End the thread soon."""
        self._stopped.set()

    def run(self) -> None:
        """Watch until stopped; a database that is away for a moment ends nothing."""
        connection = None
        rounds = 0
        while not self._stopped.wait(WATCH_SECONDS):
            rounds += 1
            try:
                connection = connection or self._engine.raw_connection()
                self._notify(self._changed(connection, rounds))
            except Exception as error:
                log.warning("cannot watch the database", action="watch_failed", error=str(error))
                connection = None
        if connection is not None:
            connection.close()

    def _changed(self, connection: Any, rounds: int) -> list[int]:
        runs = self._watched()
        if not runs:
            return []
        look_at_logs = rounds % round(LOG_SECONDS / WATCH_SECONDS) == 0
        cursor = connection.cursor()
        version = self._data_version(cursor)
        if version is not None and version == self._version and self._marks.keys() >= set(runs):
            return [run for run in runs if look_at_logs and self._marks[run][:1] not in FINAL_MARKS]
        self._version = version
        numbers = ",".join(str(run) for run in runs)
        cursor.execute(f"SELECT id, state, next_event_id, deleting FROM run WHERE id IN ({numbers})")  # noqa: S608  # integers
        found = {row[0]: tuple(row[1:]) for row in cursor.fetchall()}
        connection.rollback()
        before, self._marks = self._marks, {run: found.get(run, ("deleted",)) for run in runs}
        return [
            run
            for run, mark in self._marks.items()
            if mark != before.get(run) or (look_at_logs and mark[:1] not in FINAL_MARKS)
        ]

    def _data_version(self, cursor: Any) -> Any:
        if self._engine.dialect.name != "sqlite":
            return None
        cursor.execute("PRAGMA data_version")
        return cursor.fetchone()[0]
