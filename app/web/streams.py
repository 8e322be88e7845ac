"""Streams: one watcher detects changes in the database, and all open streams of a run share readings.

    with live.channel(run_id) as channel:
        tick = channel.tick
        ...                                     # read, through `channel.shared`, and send
        tick = await channel.beyond(tick, 15)   # returns when something happened, or after 15 s

`live.closing` becomes true when the service is stopping: streams then end at once and clients reconnect later.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import structlog

from app.db import Engine, why_unavailable
from app.runs.telemetry.watching import WATCH_SECONDS, Watch

HEARTBEAT_SECONDS: Final = 15.0
AWAY_SECONDS: Final = 1.0
"""Pause of a stream before it asks a database again that is away."""
HEARTBEAT: Final = b": still here\n\n"
HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Headers of every stream: no caching, no buffering by proxies."""
Found = TypeVar("Found")

log = structlog.get_logger(__name__)


class Channel:
    """State shared by open streams of one run: a tick that counts changes, and the readings of this tick."""

    def __init__(self) -> None:
        self.tick = 0
        self.listeners = 0
        self._readings: dict[Hashable, asyncio.Task[Any]] = {}
        self._changed = asyncio.Event()

    def advance(self) -> None:
        """Notify every listener that something happened."""
        self.tick += 1
        self._readings.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    async def beyond(self, tick: int, timeout: float) -> int:  # a heartbeat, not a failure
        """Return the current tick as soon as it differs from `tick`, or after `timeout` seconds."""
        if self.tick == tick:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), timeout)
        return self.tick

    async def shared(self, place: Hashable, read: Callable[[], Awaitable[Found]]) -> Found:
        """Return the reading of a position; within a tick, it is made once, by the `read` of the first caller."""
        reading = self._readings.get(place)
        if reading is None or (reading.done() and reading.exception() is not None):
            reading = asyncio.ensure_future(read())
            self._readings[place] = reading
        found: Found = await asyncio.shield(reading)  # a client that disconnects does not affect the others
        return found


async def wait_out(error: Exception) -> None:
    """Return after a moment if `error` says that the database is away: a stream continues when it is back.

    Raises any other error.
    """
    if not why_unavailable(error):
        raise error
    await asyncio.sleep(AWAY_SECONDS)


class Live:
    """All open streams of one application."""

    def __init__(self, engine: Engine) -> None:
        self.closing = False
        self._engine = engine
        self._channels: dict[int, Channel] = {}
        self._watcher: Watcher | None = None

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return sum(channel.listeners for channel in self._channels.values())

    @contextmanager
    def channel(self, run_id: int) -> Iterator[Channel]:
        """Subscribe to a run; call it inside the event loop."""
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
            self._watcher = Watcher(Watch(self._engine), lambda: list(self._channels), self._notify(loop))
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


class Watcher(threading.Thread):
    """Checks ten times a second in which of the watched runs something happened."""

    def __init__(self, watch: Watch, watched: Callable[[], list[int]], notify: Callable[[list[int]], None]) -> None:
        super().__init__(name="stream-watcher", daemon=True)
        self._watch, self._watched, self._notify = watch, watched, notify
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the thread soon."""
        self._stopped.set()

    def run(self) -> None:
        """Watch until stopped; a temporarily unavailable database is not fatal."""
        while not self._stopped.wait(WATCH_SECONDS):
            try:
                self._notify(self._watch.changed(self._watched()))
            except Exception as error:
                log.warning("cannot watch the database", action="watch-failed", error=str(error))
                with suppress(Exception):
                    self._watch.close()
                self._stopped.wait(AWAY_SECONDS)
        self._watch.close()
