"""GET requests take the write lock at most once to store results, and answer while another program holds it."""

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from app import db
from app.clock import now
from app.settings import Settings
from app.status import FRESH_SECONDS, WriteProbe
from tests.support.pages_data import fill
from tests.support.service import Service, running_service

pytestmark = pytest.mark.sqlite

ROOT = Path(__file__).resolve().parents[2]
ROUTE = re.compile(r"@router\.get\(\s*\"(/[^\"]*)\"")
TEXT = "notes.txt"
TREND = "?kind=token-parity&check=gradient_parity"
ENDLESS = ("/live", "/stream")
"""Streams: they read the same data as the pages."""
ASKED = {
    "/api/v1/compare": "?ids=1,2",
    "/api/v1/retention": "?max_runs=1",
    "/api/v1/runs/{run_id}/logs/{rank}": "?stage=distributed",
    "/api/v1/trends": TREND,
    "/compare": "?ids=1,2",
    "/runs/{run_id}/preview": f"?name={TEXT}",
    "/trends": TREND,
}
"""Required query parameters of routes."""
EXPECTED = {"/readyz": 503, "/runs/1/resources": 286}
"""Routes without a 200 here: there is no worker, and nothing follows in an ended run."""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(db, "BUSY_TIMEOUT_MS", 200)
    for module in ("app.status", "app.storage.usage", "app.runs.results.trends"):
        monkeypatch.setattr(f"{module}.ASIDE_MS", 50)
    with running_service(Settings(data_dir=tmp_path)) as running:
        fill(running.settings, running.engine)
        (running.settings.runs_dir / "1" / "artifacts" / TEXT).write_text("hello\n")
        yield running


def templates(service: Service) -> list[str]:
    """Return the path of every GET route of API and pages."""
    api = [path for path, methods in service.app.openapi()["paths"].items() if "get" in methods]
    pages = [
        path for file in (ROOT / "app" / "web" / "pages").rglob("*.py") for path in ROUTE.findall(file.read_text())
    ]
    return sorted({re.sub(r":\w+\}", "}", path) for path in (*api, *pages)})


def addresses(service: Service) -> list[str]:
    """Return an address for every GET route that ends; run 1 has passed and has files of every sort."""
    values = {"run_id": 1, "rank": 0, "path": TEXT, "kind": "token-parity", "label": "name"}
    return [path.format(**values) + ASKED.get(path, "") for path in templates(service) if not path.endswith(ENDLESS)]


@contextmanager
def locks_taken(engine: Engine) -> Iterator[list[str]]:
    """Yield a list that grows by one with every transaction that takes the write lock."""
    taken: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("BEGIN IMMEDIATE"):
            taken.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield taken
    finally:
        event.remove(engine, "before_cursor_execute", note)


@contextmanager
def held(service: Service) -> Iterator[None]:
    """Hold the write lock as another program would."""
    other = sqlite3.connect(service.settings.data_dir / "ddp-audit.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def statuses(service: Service, paths: list[str]) -> dict[str, int]:
    return {path: service.http.get(path, follow_redirects=True).status_code for path in paths}


def test_every_route_is_asked(service: Service) -> None:
    paths = addresses(service)
    assert len(paths) > 40
    found = statuses(service, paths)
    assert {path: code for path, code in found.items() if code != 200} == EXPECTED


def test_second_reading_takes_no_lock(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = now()
    service.app.state.write_probe = WriteProbe(service.engine, clock=lambda: moment)
    paths = addresses(service)
    with locks_taken(service.engine) as first:
        statuses(service, paths)
    assert first, "nothing is stored: the test would not notice a lock"
    taking = []
    for path in paths:
        with locks_taken(service.engine) as taken:
            service.http.get(path, follow_redirects=True)
        taking += [path] if taken else []
    assert taking == []
    with locks_taken(service.engine) as written:
        assert service.post("/runs", {"kind": "token-parity"}).status_code == 201
    assert written


def test_reading_goes_on_while_the_lock_is_held(service: Service) -> None:
    paths = addresses(service)
    trends = [path for path in paths if "/trends" in path]
    with held(service):
        found = statuses(service, paths)
        unread = service.http.get(trends[0])
        ready = service.http.get("/readyz").json()
        refused = service.post("/runs", {"kind": "token-parity"}).status_code
    # A trend without the runs whose checks are not stored yet would be wrong.
    assert {path: code for path, code in found.items() if code != 200} == EXPECTED | dict.fromkeys(trends, 503)
    assert (unread.status_code, unread.json()["code"]) == (503, "database_unavailable")
    assert ready["code"] == "database_unavailable"
    assert "database is locked" in ready["detail"]
    assert refused == 503
    statuses(service, trends)
    with held(service):
        assert set(statuses(service, trends).values()) == {200}
    assert service.get("/usage").json()["bytes"] > 300


class Clock:
    """A clock that advances only when set."""

    def __init__(self) -> None:
        self.time = now()

    def __call__(self) -> datetime:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_ready_says_when_it_looked(service: Service, clock: Clock) -> None:
    service.app.state.write_probe = WriteProbe(service.engine, clock=clock)

    def ask() -> str:
        answer = service.http.get("/readyz").json()
        assert answer["code"] == "no_worker"
        assert service.get("/status").json()["checked_at"] == answer["checked_at"]
        return str(answer["checked_at"])

    with locks_taken(service.engine) as taken:
        first = ask()
        clock.advance(FRESH_SECONDS - 0.001)
        assert ask() == first
        assert len(taken) == 1
        clock.advance(0.001)
        second = ask()
        assert second > first
        assert len(taken) == 2
        clock.advance(-3600)  # the machine's clock was set back: otherwise there would be no check for an hour
        assert ask() < first
        assert len(taken) == 3


def test_held_lock_is_told_until_it_is_looked_again(service: Service, clock: Clock) -> None:
    probe = WriteProbe(service.engine, clock=clock)
    assert probe.look().fault is None
    clock.advance(FRESH_SECONDS)
    with held(service):
        assert "database is locked" in str(probe.look().fault)
    assert probe.look().fault is not None
    clock.advance(FRESH_SECONDS)
    assert probe.look().fault is None


def test_database_that_takes_the_lock_but_no_write_is_told(service: Service, clock: Clock) -> None:
    probe = WriteProbe(service.engine, clock=clock)
    assert probe.look().fault is None  # its row exists from now on

    def read_only(connection: Any, *_: Any) -> None:
        connection.execute("PRAGMA query_only = ON")

    service.engine.dispose()
    event.listen(service.engine, "connect", read_only)
    try:
        clock.advance(FRESH_SECONDS)
        assert "readonly" in str(probe.look().fault)
    finally:
        event.remove(service.engine, "connect", read_only)
        service.engine.dispose()


def test_many_who_ask_at_once_share_one_look(service: Service, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    probe, inside, go_on = WriteProbe(service.engine, clock=clock), threading.Event(), threading.Event()
    real: Callable[..., Any] = db.write_session

    def slow(*arguments: Any, **given: Any) -> Any:
        inside.set()
        assert go_on.wait(30)
        return real(*arguments, **given)

    monkeypatch.setattr("app.status.write_session", slow)
    found: list[datetime] = []
    askers = [threading.Thread(target=lambda: found.append(probe.look().checked_at)) for _ in range(5)]
    with locks_taken(service.engine) as taken:
        for asker in askers:
            asker.start()
        assert inside.wait(30)
        go_on.set()
        for asker in askers:
            asker.join()
    assert len(taken) == 1
    assert found == [found[0]] * 5
