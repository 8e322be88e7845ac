"""Follows a run for a command: by the named service's stream, else by the same reading of the data directory."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import httpx
import orjson

from app.cli.client import BASE, Client
from app.cli.exits import CommandError, Exit
from app.runs.errors import NotFound
from app.runs.telemetry.cursor import START, Cursor, decode
from app.runs.telemetry.items import EVERYTHING, Item, Wanted

IDLE_SECONDS: Final = 0.3
"""A follower returns an empty reading after this long without anything new."""
RETRY_SECONDS: Final = 1.0
"""Pause before reconnecting to a stream that was closed early."""
SILENT_SECONDS: Final = 60.0
"""A stream that sends nothing for this long, not even a heartbeat, counts as broken."""


def follow(client: Client, run_id: int, wanted: Wanted = EVERYTHING, cursor: Cursor = START) -> Iterator[list[Item]]:
    """Yield what happens to a run as it happens, through its end; no items mean that nothing is new.

    Raises CommandError if the run does not exist or was deleted, and if the service cannot be reached.
    """
    cursor = replace(cursor, of=wanted.owner(run_id))
    if client.remote:
        yield from _over_http(client, run_id, wanted, cursor)
        return
    from app.runs.telemetry.following import follow as follow_here

    try:
        yield from follow_here(client.engine, client.settings.runs_dir, run_id, cursor, wanted)
    except NotFound as missing:
        raise CommandError(Exit.NOT_FOUND, missing.detail) from None


def _over_http(client: Client, run_id: int, wanted: Wanted, cursor: Cursor) -> Iterator[list[Item]]:
    with asyncio.Runner() as runner:
        stream = _Stream(client, run_id, wanted, cursor)
        while (items := runner.run(stream.next_items())) is not None:
            yield items


@dataclass(slots=True)
class _Stream:
    """The API's stream of a run, resumed where it was interrupted; read in a separate task next to its reader."""

    client: Client
    run_id: int
    wanted: Wanted
    cursor: Cursor
    _came: list[Item] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _reading: "asyncio.Task[None] | None" = None

    async def next_items(self) -> list[Item] | None:
        """Return what has arrived, an empty list after `IDLE_SECONDS` without anything, None after the end."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(lambda _: self._news.set())
        reading = self._reading
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), IDLE_SECONDS)
        came, self._came = self._came, []
        self._news.clear()
        if came or not reading.done():
            return came
        reading.result()  # raises what ended the task
        return None

    async def _read(self) -> None:
        async with self.client.streaming(SILENT_SECONDS) as http:
            while not self.cursor.ended:
                await self._read_once(http)
                if not self.cursor.ended:
                    await asyncio.sleep(RETRY_SECONDS)

    async def _read_once(self, http: httpx.AsyncClient) -> None:
        path = f"{BASE}/runs/{self.run_id}/stream"
        with self.client.reachable():
            async with http.stream("GET", path, params=_query(self.wanted, self.cursor)) as response:
                if not response.is_success:
                    await response.aread()
                self.client.answer(response)
                if response.status_code == httpx.codes.NO_CONTENT:  # the cursor was past the end
                    self.cursor = Cursor(ended=True)
                with suppress(httpx.RemoteProtocolError, httpx.ReadError, httpx.ReadTimeout):  # the connection was lost
                    async for item in _items(response.aiter_lines()):
                        self.cursor = item.cursor
                        self._came.append(item)
                        self._news.set()


def _query(wanted: Wanted, cursor: Cursor) -> dict[str, Any]:
    events, output = wanted.events, wanted.output
    parts = {"state": wanted.moves, "event": events is not None, "log": output is not None}
    place = events or output
    asked = {
        "only": [name for name, asked in parts.items() if asked],
        "stage": place and place.stage,
        "rank": place and place.rank,
        "type": events and events.type,
        "after": cursor.encode(),
    }
    return {name: value for name, value in asked.items() if value is not None}


async def _items(lines: AsyncIterator[str]) -> AsyncIterator[Item]:
    """Yield the items of server-sent events as the API writes them: each field on one line, data last."""
    fields: dict[str, str] = {}
    async for line in lines:
        name, _, value = line.partition(": ")
        if not line and "data" in fields:
            kind: Any = fields["event"]
            yield Item(type=kind, data=orjson.loads(fields["data"]), cursor=decode(fields["id"]))
            fields = {}
        elif name:
            fields[name] = value
