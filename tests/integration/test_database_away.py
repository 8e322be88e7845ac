"""A database locked by another program, or on a full disk: a 503 that says so, nothing half done, then recovery."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import event

from app import db
from app.database import sqlite
from app.settings import Settings
from tests.support.service import Service, running_service

pytestmark = pytest.mark.sqlite

REQUEST = {"kind": "token-parity"}


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(db, "BUSY_TIMEOUT_MS", 200)
    monkeypatch.setattr(sqlite, "PATIENCE_MS", 100)
    with running_service(Settings(data_dir=tmp_path)) as running:
        yield running


def count(service: Service) -> int:
    return len(service.get("/runs").json()["items"])


def test_held_database_is_told(service: Service) -> None:
    other = sqlite3.connect(service.settings.data_dir / "ddp-audit.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    refused = service.post("/runs", REQUEST)
    page = service.http.post("/quick", headers={"Accept": "text/html"})
    assert count(service) == 0  # reading still works
    other.execute("ROLLBACK")
    other.close()
    assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")
    assert "database is locked" in refused.json()["detail"]
    assert refused.headers["retry-after"] == "5"
    assert page.status_code == 503
    assert page.headers["content-type"].startswith("text/html")
    assert service.post("/runs", REQUEST).status_code == 201
    assert count(service) == 1


def test_full_disk_is_told(service: Service) -> None:
    limit = 0

    def bound(connection: Any, *_: Any) -> None:
        connection.execute(f"PRAGMA max_page_count = {limit}")

    with service.engine.connect() as connection:
        limit = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    event.listen(service.engine, "connect", bound)
    service.engine.dispose()
    large = {**REQUEST, "name": "n" * 200, "tags": [f"{number}-{'t' * 50}" for number in range(20)]}
    codes = [service.post("/runs", large).status_code for _ in range(30)]
    assert codes[-1] == 503
    assert set(codes) <= {201, 503}
    assert count(service) == codes.count(201)
    event.remove(service.engine, "connect", bound)
    service.engine.dispose()
    assert service.post("/runs", large).status_code == 201


def test_other_errors_stay_errors(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.web.api.runs.get_run_document", lambda *_: 1 // 0)
    answer = service.get("/runs/1")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")


def test_held_database_keeps_a_session_to_be_ended_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "BUSY_TIMEOUT_MS", 200)
    with (
        running_service(Settings(data_dir=tmp_path, token=SecretStr("operator"))) as service,
        service.client() as client,
    ):
        other = sqlite3.connect(tmp_path / "ddp-audit.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert client.post("/login", data={"token": "operator"}).status_code == 204  # signing in writes nothing
        refused = client.post("/logout")
        assert client.get("/api/v1/runs").status_code == 200
        other.execute("ROLLBACK")
        other.close()
        assert (refused.status_code, "set-cookie" in refused.headers) == (503, False)
        assert client.post("/logout").status_code == 204
        assert client.get("/api/v1/runs").status_code == 401
