"""Access control: tokens, roles, sessions, hosts, origins, and headers of every answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from app.settings import Settings
from tests.support.pages_data import add_run
from tests.support.service import Service, running_service, shown

OPERATOR, VIEWER = "operator-token-äöü", "viewer-token"
WRITES = [
    ("POST", "/api/v1/runs"),
    ("POST", "/api/v1/runs/1/cancel"),
    ("POST", "/api/v1/runs/1/retry"),
    ("DELETE", "/api/v1/runs/1"),
    ("POST", "/launch"),
    ("POST", "/runs/1/cancel"),
    ("POST", "/nothing"),
]
READS = ["/api/v1/runs", "/api/v1/kinds", "/api/v1/runs/1/stream", "/openapi.json", "/docs", "/metrics", "/", "/launch"]
OPEN = ["/healthz", "/readyz", "/version", "/login", "/favicon.ico", "/static/js/docs.js"]


def settings(data_dir: Path, **given: Any) -> Settings:
    tokens = {"token": SecretStr(OPERATOR), "viewer_token": SecretStr(VIEWER)}
    return Settings(data_dir=data_dir, **tokens | given)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(settings(tmp_path_factory.mktemp("data"))) as running:
        yield running


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as running:
        yield running


def bearer(token: str, **more: str) -> httpx.Headers:
    return httpx.Headers({"Authorization": f"Bearer {token}", **more}, encoding="utf-8")


@pytest.mark.parametrize("path", OPEN)
def test_open_paths_need_nothing(guarded: Service, path: str) -> None:
    wanted = 503 if path == "/readyz" else 200  # no worker runs here
    assert guarded.http.get(path).status_code == wanted
    assert guarded.http.get(path, headers=bearer("wrong")).status_code == wanted


@pytest.mark.parametrize("path", READS)
def test_reads_need_either_token(guarded: Service, path: str) -> None:
    with guarded.elsewhere() as client:  # more than ten wrong tokens from one address must wait
        missing, wrong = client.get(path), client.get(path, headers=bearer("wrong"))
    for answer in (missing, wrong):
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorised")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    for token in (OPERATOR, VIEWER):
        assert guarded.http.get(path, headers=bearer(token)).status_code in {200, 404}


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_writes_need_the_operator(guarded: Service, method: str, path: str) -> None:
    assert guarded.http.request(method, path).status_code == 401
    with guarded.elsewhere() as client:
        assert client.request(method, path, headers=bearer("wrong")).status_code == 401
    viewer = guarded.http.request(method, path, headers=bearer(VIEWER))
    assert (viewer.status_code, viewer.json()["code"]) == (403, "read_only")
    assert guarded.http.request(method, path, headers=bearer(OPERATOR)).status_code not in {401, 403}


def test_predict_counts_as_a_read(guarded: Service) -> None:
    files = {"file": ("a.png", b"x", "image/png")}
    for path in ("/api/v1/predict", "/api/v1/runs/999/predict"):
        assert guarded.http.post(path, files=files).status_code == 401
        assert guarded.http.post(path, files=files, headers=bearer(VIEWER)).status_code == 404


def test_public_reading_leaves_writes_closed(tmp_path: Path) -> None:
    with running_service(settings(tmp_path, public_read=True)) as service:
        assert service.get("/runs").status_code == 200
        assert service.http.get("/").status_code == 200
        assert service.http.get("/", headers=bearer("wrong")).status_code == 401
        assert service.post("/runs", {"kind": "resume"}).status_code == 401
        assert service.post("/runs", {"kind": "resume"}, headers=bearer(OPERATOR)).status_code == 201


def test_without_token_everybody_is_operator(unguarded: Service) -> None:
    assert unguarded.post("/runs", {"kind": "resume"}).status_code == 201


def test_person_is_sent_to_the_login(guarded: Service) -> None:
    answer = guarded.http.get("/runs?state=failed", headers={"Accept": "text/html"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=%2Fruns%3Fstate%3Dfailed"


def log_in(client: httpx.Client, token: str, **fields: str) -> httpx.Response:
    return client.post("/login", data={"token": token, **fields}, headers={"Accept": "text/html"})


@pytest.mark.parametrize(("token", "status"), [(OPERATOR, 201), (VIEWER, 403)])
def test_session_carries_the_role(guarded: Service, token: str, status: int) -> None:
    with guarded.client() as client:
        answer = log_in(client, token, next="/runs?q=a")
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs?q=a")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        assert token not in cookie
        assert client.get("/api/v1/runs").status_code == 200
        assert client.post("/api/v1/runs", json={"kind": "resume"}).status_code == status
        client.post("/logout")
        assert client.get("/api/v1/runs").status_code == 401


def test_forged_session_is_nobody(guarded: Service) -> None:
    with guarded.client() as client:
        cookie = log_in(client, VIEWER).cookies["ddp_audit_session"]
    payload, _, signature = cookie.partition(".")
    for forged in (cookie[:-1], f"{payload[:-1]}A.{signature}", "x", ""):
        answer = guarded.http.get("/api/v1/runs", headers={"Cookie": f"ddp_audit_session={forged}"})
        assert answer.status_code == 401
    assert guarded.http.get("/api/v1/runs", headers={"Cookie": f"ddp_audit_session={cookie}"}).status_code == 200


def test_changed_token_ends_sessions(tmp_path: Path) -> None:
    with running_service(settings(tmp_path)) as service, service.client() as client:
        cookie = log_in(client, OPERATOR).cookies["ddp_audit_session"]
    assert (tmp_path / "session.key").stat().st_mode & 0o077 == 0
    headers = {"Cookie": f"ddp_audit_session={cookie}"}
    with running_service(settings(tmp_path)) as service:
        assert service.get("/runs", headers=headers).status_code == 200
    with running_service(settings(tmp_path, token=SecretStr("another"))) as service:
        assert service.get("/runs", headers=headers).status_code == 401


@pytest.mark.parametrize(
    "page", ["//evil.example", "https://evil.example/", "/\\evil.example", "javascript:alert(1)", "/\tx", "runs"]
)
def test_login_never_leads_away(guarded: Service, page: str) -> None:
    with guarded.client() as client:
        assert log_in(client, OPERATOR, next=page).headers["location"] == "/"


def test_guesses_are_limited(tmp_path: Path) -> None:
    with running_service(settings(tmp_path)) as service, service.client() as client:
        statuses = [log_in(client, f"guess {number}").status_code for number in range(12)]
        assert statuses == [401] * 10 + [429] * 2
        refused = client.post("/login", data={"token": OPERATOR})
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1


def test_wrong_token_shows_the_form_again(guarded: Service) -> None:
    with guarded.client() as client:
        page = log_in(client, "<b>wrong</b>", next="/runs")
        assert page.status_code == 401
        assert 'name="token"' in page.text
        assert "<b>wrong</b>" not in page.text
        problem = client.post("/login", data={"token": "wrong"})
        assert (problem.status_code, problem.json()["code"]) == (401, "unauthorised")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "user@127.0.0.1", "", "127.0.0.1:x", "[::1"]
)
def test_foreign_host_is_refused(unguarded: Service, host: str) -> None:
    for path in ("/", "/healthz", "/api/v1/runs", "/static/js/docs.js"):
        answer = unguarded.http.get(path, headers={"Host": host})
        assert answer.status_code == 400
    assert unguarded.http.get("/healthz", headers={"Host": "LOCALHOST:9"}).status_code == 200
    assert unguarded.http.get("/healthz", headers={"Host": "[::1]:9"}).status_code == 200


def test_allowed_hosts_replace_the_defaults(tmp_path: Path) -> None:
    with running_service(Settings(data_dir=tmp_path, allowed_hosts=("audit.example", "*.inside.example"))) as service:
        for host, status in (("audit.example", 200), ("a.inside.example", 200), ("inside.example", 400), ("x.y", 400)):
            assert service.http.get("/healthz", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost", "x", "http://["]
)
def test_foreign_origin_writes_nothing(unguarded: Service, origin: str) -> None:
    answer = unguarded.post("/runs", {"kind": "resume"}, headers={"Origin": origin})
    assert (answer.status_code, answer.json()["code"]) == (403, "foreign_origin")
    assert unguarded.get("/runs", headers={"Origin": origin}).status_code == 200


def test_own_origin_may_write(unguarded: Service) -> None:
    body = {"kind": "resume"}
    assert unguarded.post("/runs", body, headers={"Origin": unguarded.url}).status_code == 201
    proxied = {"Origin": "https://localhost", "Host": "localhost"}
    assert unguarded.post("/runs", body, headers=proxied).status_code == 201
    cross = unguarded.post("/runs", body, headers={"Sec-Fetch-Site": "cross-site"})
    assert cross.status_code == 403


def test_every_answer_carries_the_headers(unguarded: Service) -> None:
    answered = {"/": 200, "/docs": 200, "/api/v1/runs": 200, "/static/js/docs.js": 200}
    for path, status in {**answered, "/api/v1/runs/99": 404, "/nothing": 404}.items():
        answer = unguarded.http.get(path)
        assert answer.status_code == status
        headers = answer.headers
        policy = headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "unsafe-inline" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


def test_prefix_holds_behind_a_proxy(tmp_path: Path) -> None:
    with running_service(settings(tmp_path, root_path="/audit")) as service:
        for path in ("/runs", "/audit/runs"):  # a proxy that strips the prefix, and one that does not
            answer = service.http.get(path, headers={"Accept": "text/html"})
            assert answer.headers["location"] == "/audit/login?next=%2Faudit%2Fruns"
            page = service.http.get(path, headers=bearer(OPERATOR, Accept="text/html"))
            assert page.status_code == 200
            assert 'href="/runs"' not in page.text
        created = service.http.post("/audit/api/v1/runs", json={"kind": "resume"}, headers=bearer(OPERATOR))
        assert created.headers["location"].startswith("/audit/api/v1/runs/")
        with service.client() as client:
            cookie = log_in(client, OPERATOR, next="/runs").headers
            assert cookie["location"] == "/audit/"
            assert "path=/audit" in cookie["set-cookie"].lower()


def test_only_trusted_proxies_are_believed(tmp_path: Path) -> None:
    forwarded = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.9"}
    for trusted, secure in ((("127.0.0.1",), True), (("203.0.113.1",), False), ((), False)):
        with running_service(settings(tmp_path, trusted_proxies=trusted)) as service:
            answer = service.http.post("/login", data={"token": OPERATOR}, headers=forwarded)
            assert ("secure" in answer.headers["set-cookie"].lower()) is secure


def test_tokens_never_show(guarded: Service) -> None:
    add_run(guarded.engine, "succeeded", verdict="pass")
    for path in ("/", "/runs", "/launch", "/api/v1/runs", "/openapi.json", "/metrics", "/version"):
        text = shown(guarded.http, path, bearer(OPERATOR))
        assert OPERATOR not in text
        assert VIEWER not in text
    assert OPERATOR not in repr(guarded.settings)
