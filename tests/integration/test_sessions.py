"""Signing out ends a session permanently, in every copy of its cookie; wrong tokens are counted."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlmodel import col, select

import app.web.security.sessions as cookies
from app.clock import now
from app.db import read_session, write_session
from app.sessions import EndedSession
from app.settings import Settings
from app.storage.backup import backup
from app.storage.restore import restore
from tests.support.pages_data import add_events, add_run
from tests.support.service import Service, running_service

OPERATOR, VIEWER = "operator-token", "viewer-token"
HTML = {"Accept": "text/html"}


def settings(data_dir: Path, **given: Any) -> Settings:
    return Settings(data_dir=data_dir, **{"token": SecretStr(OPERATOR), "viewer_token": SecretStr(VIEWER)} | given)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(settings(tmp_path_factory.mktemp("data"))) as running:
        yield running


@contextmanager
def sign_in(service: Service, token: str = OPERATOR) -> Iterator[httpx.Client]:
    with service.client() as client:
        assert client.post("/login", data={"token": token}).status_code == 204
        yield client


def copy_of(client: httpx.Client) -> dict[str, str]:
    """Return the header with which another client would use a client's session."""
    return {"Cookie": f"{cookies.COOKIE}={client.cookies[cookies.COOKIE]}"}


@pytest.mark.parametrize("token", [OPERATOR, VIEWER])
def test_copied_cookie_ends_with_its_session(service: Service, token: str) -> None:
    with sign_in(service, token) as client, sign_in(service, token) as other:
        copied, beside = copy_of(client), copy_of(other)
        for path in ("/api/v1/runs", "/runs"):
            assert service.http.get(path, headers=copied | HTML).status_code == 200
        client.post("/logout")
        for path, refused in (("/api/v1/runs", 401), ("/runs", 303), ("/metrics", 401), ("/api/v1/kinds", 401)):
            accept = HTML if path == "/runs" else {}
            assert service.http.get(path, headers=copied | accept).status_code == refused
        assert service.post("/runs", {"kind": "resume"}, headers=copied).status_code == 401
        assert service.http.get("/api/v1/runs", headers=beside).status_code == 200  # another session of the same token
        assert service.http.get("/login", headers=copied).status_code == 200


def test_ended_session_stays_ended_after_a_restart(tmp_path: Path) -> None:
    with running_service(settings(tmp_path)) as service, sign_in(service) as gone, sign_in(service) as kept:
        ended, holds = copy_of(gone), copy_of(kept)
        assert gone.post("/logout").status_code == 204
    with running_service(settings(tmp_path)) as service:
        assert service.get("/runs", headers=ended).status_code == 401
        assert service.get("/runs", headers=holds).status_code == 200


def test_services_on_one_database_agree(tmp_path: Path) -> None:
    with (
        running_service(settings(tmp_path)) as here,
        running_service(settings(tmp_path)) as there,
        sign_in(here) as client,
    ):
        copied = copy_of(client)
        assert there.get("/runs", headers=copied).status_code == 200
        assert there.http.post("/logout", headers=copied).status_code == 204
        assert client.get("/api/v1/runs").status_code == 401


def test_signing_in_again_ends_the_session_before(service: Service) -> None:
    with sign_in(service) as client:
        before = copy_of(client)
        assert client.post("/login", data={"token": "wrong"}).status_code == 401
        assert service.get("/runs", headers=before).status_code == 200  # a wrong token ends no session
        assert client.post("/login", data={"token": OPERATOR}).status_code == 204
        assert service.get("/runs", headers=before).status_code == 401
        assert client.get("/api/v1/runs").status_code == 200


def test_signing_out_without_a_session_writes_nothing(service: Service) -> None:
    def kept() -> int:
        with read_session(service.engine) as session:
            return len(session.exec(select(EndedSession)).all())

    before = kept()
    for headers in (
        {},
        {"Cookie": f"{cookies.COOKIE}=x"},
        {"Cookie": f"{cookies.COOKIE}=WyJhIiwib3BlcmF0b3IiXQ.aaaa.bbbb"},
    ):
        assert service.http.post("/logout", headers=headers).status_code == 204
    assert kept() == before


def test_cookie_of_an_earlier_version_is_nobodys(service: Service) -> None:
    """It had a role but no session id: it could not be signed out."""
    signer = service.app.state.sessions._signer()
    for payload in ("operator", ["operator"], ["a", "b", "operator"], [1, "operator"], {"role": "operator"}, None):
        headers = {"Cookie": f"{cookies.COOKIE}={signer.dumps(payload)}"}
        assert service.get("/runs", headers=headers).status_code == 401
    unknown = {"Cookie": f"{cookies.COOKIE}={signer.dumps(['id', 'admin'])}"}
    assert service.get("/runs", headers=unknown).status_code == 401


def test_old_rows_go(service: Service) -> None:
    with write_session(service.engine) as session:
        session.add(EndedSession(id="old", until=now() - timedelta(seconds=1)))
        session.add(EndedSession(id="young", until=now() + timedelta(days=1)))
    with sign_in(service) as client:
        client.post("/logout")
    with read_session(service.engine) as session:
        found = session.exec(select(EndedSession.id).where(col(EndedSession.id).in_(["old", "young"]))).all()
    assert list(found) == ["young"]


@pytest.mark.parametrize("path", ["/api/v1/runs/{}/stream", "/runs/{}/live"])
def test_open_stream_ends_with_its_session(service: Service, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cookies, "LOOK_AGAIN_SECONDS", 0.0)
    run_id = add_run(service.engine, "running", moves=("starting",))
    reached: list[str] = []
    with sign_in(service) as client, sign_in(service) as other:
        first, second = threading.Event(), threading.Event()

        def follow(reader: httpx.Client, arrived: threading.Event, name: str) -> None:
            with reader.stream("GET", path.format(run_id)) as response:
                for line in response.iter_lines():
                    if line.startswith("id:"):
                        arrived.set()
                    if "note of the end" in line:
                        reached.append(name)
                        return
            reached.append(f"{name} was cut off")

        threads = [
            threading.Thread(target=follow, args=(reader, arrived, name))
            for reader, arrived, name in ((client, first, "signed out"), (other, second, "signed in"))
        ]
        for thread in threads:
            thread.start()
        assert first.wait(20)
        assert second.wait(20)
        with service.client() as elsewhere:
            elsewhere.post("/logout", headers=copy_of(client))

        with write_session(service.engine) as session:
            line = {"type": "message", "level": "info", "text": "note of the end"}
            add_events(session, run_id, "train", [line])
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    assert sorted(reached) == ["signed in", "signed out was cut off"]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_wrong_bearer_tokens_are_limited(service: Service) -> None:
    paths = ["/api/v1/runs", "/runs", "/metrics", "/api/v1/runs/1/stream"]
    with service.elsewhere() as client:
        for number in range(10):
            answer = client.get(paths[number % 4], headers=bearer(f"guess {number}"))
            assert answer.status_code == 401
        for method, path in (("GET", "/api/v1/runs"), ("POST", "/api/v1/runs"), ("GET", "/docs")):
            refused = client.request(method, path, headers=bearer("another guess"))
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
            assert 1 <= int(refused.headers["retry-after"]) <= 60


def test_right_tokens_are_never_kept_out(service: Service) -> None:
    with service.elsewhere() as client:
        for number in range(12):
            client.get("/api/v1/runs", headers=bearer(f"guess {number}"))
        for token in (OPERATOR, VIEWER):
            assert client.get("/api/v1/runs", headers=bearer(token)).status_code == 200
        assert client.get("/api/v1/runs", headers=bearer("guess")).status_code == 429  # that does not reset the count
        assert client.get("/api/v1/runs").status_code == 401  # a client without a token does not guess
        assert client.get("/healthz", headers=bearer("guess")).status_code == 200
        assert client.post("/login", data={"token": OPERATOR}).status_code == 204  # counted apart
        assert client.get("/api/v1/runs").status_code == 200


def test_guesses_count_per_address(service: Service) -> None:
    with service.elsewhere() as guesser, service.elsewhere() as other:
        for number in range(12):
            guesser.get("/api/v1/runs", headers=bearer(f"guess {number}"))
        assert guesser.get("/api/v1/runs", headers=bearer("guess")).status_code == 429
        assert other.get("/api/v1/runs", headers=bearer("guess")).status_code == 401


@pytest.mark.sqlite
def test_restored_database_lets_nobody_back_in(tmp_path: Path) -> None:
    """A backup lacks later sign-outs, so restoring it in place ends every session."""
    made, archive = settings(tmp_path / "data"), tmp_path / "before.tar"
    with running_service(made) as service, sign_in(service) as gone, sign_in(service) as kept:
        ended, held = copy_of(gone), copy_of(kept)
        backup(made, archive)
        gone.post("/logout")
    restore(made, archive, replace=True)
    with running_service(made) as service:
        for headers in (ended, held):
            assert service.get("/runs", headers=headers).status_code == 401
        with sign_in(service) as client:
            assert client.get("/api/v1/runs").status_code == 200
