"""Commands that follow a run, on the data directory and with a service: each line once, as it appears, to the end."""

import json
from collections.abc import Iterator

import pytest
from sqlmodel import select

from app.assembly import create_local_api
from app.cli.client import Client
from app.cli.exits import CommandError, Exit
from app.cli.following import follow
from app.clock import now
from app.db import write_session
from app.runs import queue
from app.runs.models import StageAttempt
from app.runs.states import Reason, State
from app.runs.telemetry.cursor import START, Cursor
from app.runs.telemetry.items import EventFilter, Item, Wanted
from app.settings import ClientSettings, Settings
from tests.support.cli import call, start
from tests.support.pages_data import add_events, add_run, add_stages, write_log
from tests.support.service import Service, running_service

BOTH = pytest.mark.parametrize("way", ["directory", "service"])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("followed"))) as running:
        yield running


@pytest.fixture
def run_id(service: Service) -> int:
    number = add_run(service.engine, "running", moves=("starting",))
    add_stages(service.engine, number, {"prepare": "succeeded", "train": "running"})
    return number


def where(service: Service, way: str) -> dict[str, str]:
    return {} if way == "directory" else {"DDP_AUDIT_PORT": service.url.rsplit(":", 1)[1]}


@pytest.fixture
def client(service: Service, way: str) -> Iterator[Client]:
    port = int(service.url.rsplit(":", 1)[1])
    local = create_local_api(service.settings) if way == "directory" else None
    made = Client(ClientSettings(port=port), local)
    yield made
    made.close()


def say(service: Service, run_id: int, *texts: str, rank: int = 0) -> None:
    with write_session(service.engine) as session:
        events = [{"type": "message", "level": "info", "text": text, "rank": rank} for text in texts]
        add_events(session, run_id, "train", events)


def finish(service: Service, run_id: int) -> None:
    with write_session(service.engine) as session:
        for row in session.exec(select(StageAttempt).where(StageAttempt.run_id == run_id)):
            row.finished_at, row.state = now(), "succeeded"
        queue.move(
            session, run_id, State.RUNNING, State.SUCCEEDED, reason=Reason.COMPLETED, verdict="pass", actor="worker"
        )


def heard(stream: Iterator[list[Item]], text: str) -> list[Item]:
    """Return the items up to the event with this text."""
    items: list[Item] = []
    for some in stream:
        items += some
        if any(item.data.get("text") == text for item in some):
            return items
    pytest.fail(f"{text!r} never came")


@BOTH
def test_every_item_comes_once_and_as_it_happens(service: Service, run_id: int, client: Client) -> None:
    stream = follow(client, run_id)
    say(service, run_id, "one")
    items = heard(stream, "one")
    assert [item.type for item in items] == ["state"] * 3 + ["event"]
    while next(stream):  # in between it returns empty readings
        pass
    write_log(service.settings, run_id, "train", 0, "printed\n")
    say(service, run_id, "two")
    items = heard(stream, "two")
    finish(service, run_id)
    items += [item for some in stream for item in some]
    assert sorted(item.type for item in items) == ["end", "event", "log", "state"]
    assert items[-1].data == {"state": "succeeded", "reason": "completed", "verdict": "pass"}
    assert [item for some in follow(client, run_id, cursor=items[-1].cursor) for item in some] == []


@BOTH
def test_follower_takes_what_it_asked_for(service: Service, run_id: int, client: Client) -> None:
    say(service, run_id, "zero", "uno")
    say(service, run_id, "one", rank=1)
    write_log(service.settings, run_id, "train", 0, "printed\n")
    finish(service, run_id)
    wanted = Wanted(moves=False, events=EventFilter(stage="train", rank=0, type="message"), output=None)
    for cursor, texts in ((START, ["zero", "uno"]), (Cursor(event=1), ["uno"])):
        items = [item for some in follow(client, run_id, wanted, cursor) for item in some]
        assert [item.data.get("text") for item in items[:-1]] == texts


@BOTH
def test_missing_run_is_an_error(client: Client) -> None:
    with pytest.raises(CommandError) as caught:
        list(follow(client, 999))
    assert caught.value.code is Exit.NOT_FOUND


def test_both_ways_give_the_same(service: Service, run_id: int) -> None:
    say(service, run_id, "one", "two")
    write_log(service.settings, run_id, "prepare", 1, "prepared\n", stream="stderr")
    write_log(service.settings, run_id, "train", 0, "no end")
    finish(service, run_id)
    port = int(service.url.rsplit(":", 1)[1])
    remote, local = Client(ClientSettings(port=port)), Client(ClientSettings(), create_local_api(service.settings))
    told = [[item for some in follow(client, run_id) for item in some] for client in (remote, local)]
    assert told[0] == told[1]
    assert len(told[0]) == 9


@pytest.mark.parametrize("way", ["service"])
def test_stream_that_broke_off_is_taken_up_again(service: Service, run_id: int, client: Client) -> None:
    stream = follow(client, run_id)
    say(service, run_id, "one")
    heard(stream, "one")
    live = service.app.state.live
    live.close()  # a restart ends its streams
    while live.streams:
        assert next(stream) == []
    say(service, run_id, "meanwhile")
    for _ in range(3):
        assert next(stream) == []
    live.closing = False
    assert [item.data["text"] for item in heard(stream, "meanwhile")] == ["meanwhile"]
    finish(service, run_id)
    assert [item.type for some in stream for item in some] == ["state", "end"]


@pytest.mark.parametrize("way", ["service"])
def test_service_that_left_cannot_be_reached(tmp_path_factory: pytest.TempPathFactory, way: str) -> None:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("left"))) as service:
        run_id = add_run(service.engine, "running", moves=("starting",))
        port = int(service.url.rsplit(":", 1)[1])
        stream = follow(Client(ClientSettings(port=port)), run_id)
        assert len(next(some for some in stream if some)) == 3
    with pytest.raises(CommandError) as caught:
        list(stream)
    assert caught.value.code is Exit.UNREACHABLE


@BOTH
def test_log_is_printed_as_it_comes(service: Service, run_id: int, way: str) -> None:
    process = start("logs", str(run_id), "-f", "--json", data_dir=service.settings.data_dir, **where(service, way))
    assert process.stdout is not None
    lines = (json.loads(line)["line"] for line in process.stdout)
    write_log(service.settings, run_id, "prepare", 0, "prepared")  # an ended stage, no line break at its end
    write_log(service.settings, run_id, "train", 0, "first\nsec")
    assert [next(lines), next(lines)] == ["prepared", "first"]
    write_log(service.settings, run_id, "train", 0, "ond\nlast words")
    assert next(lines) == "second"
    finish(service, run_id)
    assert list(lines) == ["last words"]
    process.communicate()
    assert process.returncode == 0


@BOTH
def test_flood_is_printed_whole(service: Service, run_id: int, way: str) -> None:
    text = "".join(f"line {number}\n" for number in range(200_000))  # more than a stream returns at once
    write_log(service.settings, run_id, "train", 1, text)
    finish(service, run_id)
    done = call("logs", str(run_id), "-f", "--json", data_dir=service.settings.data_dir, **where(service, way))
    assert [json.loads(line)["line"] for line in done.stdout.splitlines()] == text.splitlines()


@BOTH
def test_events_are_printed_as_they_come(service: Service, run_id: int, way: str) -> None:
    say(service, run_id, "zero")
    asked = ("events", str(run_id), "-f", "--json", "--type", "message", "--rank", "0")
    process = start(*asked, data_dir=service.settings.data_dir, **where(service, way))
    assert process.stdout is not None
    events = (json.loads(line) for line in process.stdout)
    assert next(events)["text"] == "zero"
    say(service, run_id, "other", rank=1)
    say(service, run_id, "one")
    assert next(events)["text"] == "one"
    finish(service, run_id)
    assert list(events) == []
    process.communicate()
    assert process.returncode == 0


@BOTH
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("events", "-f", "--type", "song"), Exit.USAGE),
        (("logs", "-f", "--rank", "2"), Exit.NOT_FOUND),
        (("logs", "-f", "--stage", "song"), Exit.NOT_FOUND),
    ],
    ids=str,
)
def test_what_cannot_come_is_not_waited_for(
    service: Service, run_id: int, way: str, arguments: tuple[str, ...], code: Exit
) -> None:
    command, *options = arguments
    done = call(command, str(run_id), *options, data_dir=service.settings.data_dir, **where(service, way))
    assert done.returncode == code, done.stderr
