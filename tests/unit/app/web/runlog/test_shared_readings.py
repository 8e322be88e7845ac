"""Readers of a run's page at the same position share a reading; different positions do not."""

import asyncio
from typing import Any

import pytest

from app.runs.telemetry.cursor import START, Cursor
from app.web.runlog import following
from app.web.runlog.following import Place, Reading, read_shared
from app.web.runlog.lines import LogFilter
from app.web.runlog.messages import sse
from app.web.streams import Channel


def place(cursor: Cursor = START, role: str = "operator") -> Place:
    return Place(run_id=1, cursor=cursor, wanted=LogFilter(), role=role, prefix="")


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Place]:
    made: list[Place] = []

    def read(_request: Any, where: Place) -> Reading:
        made.append(where)
        return Reading(batches=[], parts={}, cursor=where.cursor, final=False, numbers=False, many_ranks=False)

    monkeypatch.setattr(following, "read", read)
    return made


async def several(channel: Channel, *places: Place) -> list[Reading]:
    request: Any = None
    return await asyncio.gather(*(read_shared(request, channel, item) for item in places))


def test_same_place_is_read_once(readings: list[Place]) -> None:
    asyncio.run(several(Channel(), *[place()] * 50))
    assert readings == [place()]


def test_other_place_or_role_is_read_apart(readings: list[Place]) -> None:
    asyncio.run(several(Channel(), place(), place(Cursor(event=1)), place(role="viewer")))
    assert len(readings) == 3


def test_next_tick_reads_again(readings: list[Place]) -> None:
    async def twice() -> None:
        channel = Channel()
        await several(channel, place())
        channel.advance()
        await several(channel, place())
        await several(Channel(), place())

    asyncio.run(twice())
    assert len(readings) == 3


def test_every_line_break_starts_a_data_line() -> None:
    assert sse("a\r\nb\rc\nd", cursor="x") == "id: x\ndata: a\ndata: b\ndata: c\ndata: d\n\n"
    assert sse("final", event="end") == "event: end\ndata: final\n\n"
