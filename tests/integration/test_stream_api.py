"""The stream of a run: everything once, from any position, through its end."""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from sqlmodel import select

from app.clock import now
from app.db import write_session
from app.runs import queue
from app.runs.models import StageAttempt
from app.runs.removal import delete_run
from app.runs.states import Reason, State
from app.settings import Settings
from tests.support.pages_data import add_events, add_run, add_stages, write_log
from tests.support.service import Message, Service, messages, running_service
from tests.support.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as running:
        yield running


def read(service: Service, run_id: int, after: str = "", last: str | None = None) -> list[Message]:
    headers = {} if last is None else {"Last-Event-ID": last}
    url = f"/api/v1/runs/{run_id}/stream"
    with service.http.stream("GET", url, params={"after": after}, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        return list(messages(response))


def add_ended(service: Service, events: int = 1203) -> int:
    run_id = add_run(service.engine, "succeeded", verdict="pass", reason="completed", moves=("starting", "running"))
    add_stages(service.engine, run_id, {"prepare": "succeeded", "train": "succeeded"})
    with write_session(service.engine) as session:
        add_events(session, run_id, "train", [{"type": "phase", "phase": "a", "step": n} for n in range(events)])
    write_log(service.settings, run_id, "prepare", 0, "prepared\n")
    write_log(service.settings, run_id, "train", 0, "zero\n" * 40_000)
    write_log(service.settings, run_id, "train", 1, "one\n", stream="stderr")
    return run_id


@pytest.fixture(scope="module")
def ended(service: Service) -> int:
    return add_ended(service)


@pytest.fixture(scope="module")
def story(service: Service, ended: int) -> list[Message]:
    return read(service, ended)


def output(story: list[Message]) -> dict[tuple[str, int, str], str]:
    texts: dict[tuple[str, int, str], str] = {}
    for message in story:
        if message.type == "log":
            key = (message.data["stage"], message.data["rank"], message.data["stream"])
            texts[key] = texts.get(key, "") + message.data["text"]
    return texts


def test_finished_run_is_told_whole(service: Service, ended: int, story: list[Message]) -> None:
    assert [item.data["id"] for item in story if item.type == "event"] == list(range(1, 1204))
    assert [item.data["state"] for item in story if item.type == "state"] == [
        "queued", "starting", "running", "succeeded",
    ]  # fmt: skip
    assert output(story) == {
        ("prepare", 0, "stdout"): "prepared\n",
        ("train", 0, "stdout"): "zero\n" * 40_000,
        ("train", 1, "stderr"): "one\n",
    }
    assert [item.type for item in story].count("end") == 1
    assert story[-1].type == "end"
    assert story[-1].data == {"state": "succeeded", "reason": "completed", "verdict": "pass"}
    assert len({item.id for item in story}) == len(story)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.41, 0.5, 0.97, 0.999])
def test_reconnect_gives_exactly_the_rest(service: Service, ended: int, story: list[Message], share: float) -> None:
    cut = int(share * (len(story) - 1))
    rest = read(service, ended, last=story[cut].id)
    for kind, field in (("event", "id"), ("state", "seq")):
        told, expected = ([item.data[field] for item in part if item.type == kind] for part in (rest, story[cut + 1 :]))
        assert told == expected
    before, after = output(story[: cut + 1]), output(rest)
    assert {key: before.get(key, "") + after.get(key, "") for key in before | after} == output(story)
    assert rest[-1].type == "end"


def test_header_wins_over_parameter(service: Service, ended: int, story: list[Message]) -> None:
    early, late = story[10].id, story[-3].id
    assert len(read(service, ended, after=early, last=late)) == 2
    assert len(read(service, ended, after=late)) == 2
    assert len(read(service, ended, after=early)) == len(story) - 11


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"only": "state"}, {"state": 4, "end": 1}),
        ({"only": ["state", "log"], "rank": "1"}, {"state": 4, "log": 1, "end": 1}),
        ({"only": "log", "stage": "prepare"}, {"log": 1, "end": 1}),
        ({"only": "event", "type": "message"}, {"end": 1}),
        ({"rank": "1", "stage": "prepare"}, {"state": 4, "end": 1}),
        ({"only": "event", "stage": "train", "type": "phase"}, {"event": 1203, "end": 1}),
    ],
)
def test_filters_narrow_the_stream(
    service: Service, ended: int, asked: dict[str, Any], expected: dict[str, int]
) -> None:
    url = f"/api/v1/runs/{ended}/stream"
    with service.http.stream("GET", url, params=asked) as response:
        found = list(messages(response))
    assert Counter(message.type for message in found) == expected
    again = service.http.get(url, params=asked, headers={"Last-Event-ID": found[0].id})
    assert again.text.count("\nid: ") == len(found) - 1


def test_unknown_filter_is_refused(service: Service, ended: int) -> None:
    for field, value in (("only", "end"), ("type", "song"), ("rank", "-1")):
        answer = service.get(f"/runs/{ended}/stream", params={field: value})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


def test_past_the_end_is_no_content(service: Service, ended: int, story: list[Message]) -> None:
    for headers, params in (({"Last-Event-ID": story[-1].id}, {}), ({}, {"after": story[-1].id})):
        answer = service.get(f"/runs/{ended}/stream", headers=headers, params=params)
        assert (answer.status_code, answer.content) == (204, b"")


class Follower(threading.Thread):
    """Reads a stream in a thread and records when each message arrived."""

    def __init__(self, service: Service, run_id: int) -> None:
        super().__init__(daemon=True)
        self._client, self._run_id = service.client(), run_id
        self.came: list[Message] = []
        self.open = threading.Event()
        self.whole = False
        """Whether the service ended the stream properly instead of cutting it off."""
        self.start()
        assert self.open.wait(PATIENCE)

    def run(self) -> None:
        with self._client, self._client.stream("GET", f"/api/v1/runs/{self._run_id}/stream") as response:
            self.open.set()
            for message in messages(response):
                self.came.append(message)
        self.whole = True

    def wait_for(self, kind: str, count: int = 1) -> None:
        """Wait for the `count`-th message of a type."""
        until(lambda: sum(message.type == kind for message in self.came) >= count, f"{count} messages {kind}")

    def ended(self) -> bool:
        """Wait for the end of the stream and return whether it was whole."""
        self.join(PATIENCE)
        return self.whole


def finish(service: Service, run_id: int) -> None:
    with write_session(service.engine) as session:
        for row in session.exec(select(StageAttempt).where(StageAttempt.run_id == run_id)):
            row.finished_at, row.state = now(), "succeeded"
        queue.move(
            session, run_id, State.RUNNING, State.SUCCEEDED, reason=Reason.COMPLETED, verdict="fail", actor="worker"
        )


def test_live_run_is_followed_to_its_end(service: Service) -> None:
    run_id = add_run(service.engine, "running", moves=("starting",))
    add_stages(service.engine, run_id, {"train": "running"})
    followers = [Follower(service, run_id) for _ in range(3)]
    for follower in followers:
        follower.wait_for("state", count=3)
    with write_session(service.engine) as session:
        add_events(session, run_id, "train", [{"type": "message", "level": "info", "text": "hello"}])
    for follower in followers:  # while the run is active; the benchmark measures the delay
        follower.wait_for("event")
    write_log(service.settings, run_id, "train", 0, "first\n")
    for follower in followers:
        follower.wait_for("log")
    write_log(service.settings, run_id, "train", 0, "last words")
    finish(service, run_id)
    for follower in followers:
        assert follower.ended()
        assert output(follower.came) == {("train", 0, "stdout"): "first\nlast words"}
        assert follower.came[-1].data == {"state": "succeeded", "reason": "completed", "verdict": "fail"}


def test_flood_is_skipped_and_told(service: Service) -> None:
    run_id = add_run(service.engine, "failed", reason="rank_exit", moves=("starting", "running"))
    add_stages(service.engine, run_id, {"train": "failed"})
    path = write_log(service.settings, run_id, "train", 0, "flood\n" * 1_000_000)
    logs = [item.data for item in read(service, run_id) if item.type == "log"]
    assert len(logs) == 1
    assert logs[0]["skipped"] == logs[0]["offset"] > 5_000_000
    assert logs[0]["next_offset"] == path.stat().st_size
    assert len(logs[0]["text"]) == path.stat().st_size - logs[0]["skipped"]
    assert service.http.get(logs[0]["where"]).json()["text"].startswith("flood\n")


def test_queued_run_streams_its_cancel(service: Service) -> None:
    run_id = add_run(service.engine, "queued")
    follower = Follower(service, run_id)
    follower.wait_for("state")
    service.post(f"/runs/{run_id}/cancel")
    follower.wait_for("end")
    assert [message.data["state"] for message in follower.came] == ["queued", "cancelled", "cancelled"]


def test_stream_of_deleted_run_closes(service: Service) -> None:
    run_id = add_run(service.engine, "running", moves=("starting",))
    follower = Follower(service, run_id)
    follower.wait_for("state")
    with write_session(service.engine) as session:
        queue.move(session, run_id, State.RUNNING, State.FAILED, reason=Reason.HANG, actor="worker", deleting=True)
    delete_run(service.engine, service.settings, run_id, actor="user")
    assert follower.ended()


def test_streams_end_when_the_service_stops(service: Service) -> None:
    run_id = add_run(service.engine, "running", moves=("starting",))
    with running_service(service.settings) as other:
        follower = Follower(other, run_id)
        follower.wait_for("state")
    assert follower.ended()  # uvicorn cuts off streams that have not ended within its grace period


def test_left_streams_are_forgotten(service: Service) -> None:
    run_id = add_run(service.engine, "running", moves=("starting",))
    with service.http.stream("GET", f"/api/v1/runs/{run_id}/stream") as response:
        arriving = messages(response)
        next(arriving)
        assert service.app.state.live.streams >= 1

    def forgotten() -> bool:
        with write_session(service.engine) as session:  # a stream detects at its next write that its client is gone
            add_events(session, run_id, "train", [{"type": "end"}])
        return not service.app.state.live.streams

    until(forgotten, "the service drops the stream")


def test_unknown_cursor_is_refused(service: Service, ended: int) -> None:
    for text in ("x", "WzFd", "eyJhIjoxfQ", "W10"):
        answer = service.get(f"/runs/{ended}/stream", headers={"Last-Event-ID": text})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "after")


def test_cursor_of_other_filters_is_refused(service: Service, ended: int) -> None:
    """Filtered items are before the position of the cursor: they would be missing when read without the filter."""
    other = add_ended(service, events=3)
    readings: list[tuple[int, dict[str, Any]]] = [
        (ended, {}),
        (ended, {"only": ["event", "log"]}),
        (ended, {"stage": "train"}),
        (ended, {"rank": 0}),
        (ended, {"type": "phase"}),
        (other, {}),
    ]
    for run_id, params in readings:
        with service.http.stream("GET", f"/api/v1/runs/{run_id}/stream", params=params) as response:
            cursor = next(messages(response)).id
        for asked, given in readings:
            mine = (asked, given) == (run_id, params)
            path = f"/api/v1/runs/{asked}/stream"
            for query, headers in ((given | {"after": cursor}, {}), (given, {"Last-Event-ID": cursor})):
                with service.http.stream("GET", path, params=query, headers=headers) as response:
                    assert response.status_code == (200 if mine else 422), (run_id, params, asked, given)
                    if not mine:
                        assert orjson.loads(response.read())["errors"][0]["field"] == "after"
    same = {"only": ["state", "log", "event", "log"]}  # everything, written out
    cursor = read(service, ended)[0].id
    with service.http.stream("GET", f"/api/v1/runs/{ended}/stream", params=same | {"after": cursor}) as response:
        assert response.status_code == 200
