"""Bad input over REST: reported with the field, nothing half queued, never a 500."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.settings import Settings
from tests.support.pages_data import add_run, add_stages
from tests.support.service import Service, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as running:
        yield running


def parity(**params: Any) -> dict[str, Any]:
    return {"kind": "token-parity", "params": params}


def cifar(**params: Any) -> dict[str, Any]:
    return {"kind": "cifar", "params": params}


REFUSED = {
    "unknown kind": ({"kind": "frobnicate"}, "kind"),
    "missing kind": ({}, "kind"),
    "kind not text": ({"kind": 5}, "kind"),
    "unknown member": ({"kind": "resume", "color": 1}, "color"),
    "unknown preset": ({"kind": "resume", "preset": "huge"}, "preset"),
    "unknown parameter": (parity(foo=1), "foo"),
    "wrong type": (parity(updates="3"), "updates"),
    "bool for number": (parity(updates=True), "updates"),
    "float for integer": (parity(updates=2.5), "updates"),
    "null parameter": (parity(updates=None), "updates"),
    "below range": (parity(updates=0), "updates"),
    "above range": (parity(updates=100_001), "updates"),
    "one rank": (parity(world_size=1), "world_size"),
    "too many ranks": (parity(world_size=65), "world_size"),
    "huge number": (parity(seed=10**40), "seed"),
    "unknown device": (parity(device="tpu"), "device"),
    "unknown variant": (parity(variant="wrong"), "variant"),
    "params not an object": ({"kind": "resume", "params": [1]}, "params"),
    "pool smaller than window": (parity(batch_size_per_rank=300, accumulation=2), None),
    "stop step at the end": ({"kind": "resume", "params": {"updates": 10, "stop_step": 10}}, "stop_step"),
    "stop step zero": ({"kind": "resume", "params": {"updates": 10, "stop_step": 0}}, "stop_step"),
    "unknown source": (cifar(data="imagenet"), "data"),
    "missing folder": (cifar(data="folder:nothing-here"), "data"),
    "source leaves its folder": (cifar(data="folder:../../etc"), "data"),
    "window does not divide": (cifar(accum_steps=7), None),
    "launch unknown": ({"kind": "resume", "launch": {"partition": "gpu"}}, "launch.partition"),
    "launch two nodes": ({"kind": "resume", "launch": {"nodes": 2}}, "launch.nodes"),
    "launch ranks differ": ({"kind": "resume", "launch": {"ranks_per_node": 3}}, "launch.ranks_per_node"),
    "launch no port": ({"kind": "resume", "launch": {"endpoint": "localhost"}}, "launch.endpoint"),
    "launch port too high": ({"kind": "resume", "launch": {"endpoint": "localhost:65536"}}, "launch.endpoint"),
    "launch port not text": ({"kind": "resume", "launch": {"endpoint": 29500}}, "launch.endpoint"),
    "launch bool": ({"kind": "resume", "launch": {"nodes": True}}, "launch.nodes"),
    "name too long": ({"kind": "resume", "name": "x" * 201}, "name"),
    "name with control": ({"kind": "resume", "name": "a\u0000b"}, "name"),
    "lone surrogate": ({"kind": "resume", "name": "\ud800"}, "name"),
    "surrogate in params": (cifar(data="\ud800"), "params"),
    "tags not a list": ({"kind": "resume", "tags": "a"}, "tags"),
    "tag empty": ({"kind": "resume", "tags": [""]}, "tags.0"),
    "tag blank": ({"kind": "resume", "tags": ["  "]}, "tags"),
    "too many tags": ({"kind": "resume", "tags": [str(number) for number in range(21)]}, "tags"),
}


@pytest.mark.parametrize(("body", "field"), REFUSED.values(), ids=REFUSED.keys())
def test_refusal_names_the_field(service: Service, body: dict[str, Any], field: str | None) -> None:
    before = service.get("/runs").json()
    headers = {"content-type": "application/json"}
    answer = service.http.post("/api/v1/runs", content=json.dumps(body), headers=headers)
    problem = answer.json()
    assert answer.status_code == 422, problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem.keys() >= {"type", "title", "status", "detail", "code", "errors"}
    assert field in {None, *(error["field"] for error in problem["errors"])}, problem
    assert service.get("/runs").json() == before


def test_sound_twin_is_accepted(service: Service) -> None:
    launch = {"nodes": 1, "ranks_per_node": 2, "endpoint": "127.0.0.1:0"}
    assert service.post("/runs", {**parity(updates=1), "launch": launch}).status_code == 201


RAW_BODIES = {
    "no json": (b"{", "application/json", 422),
    "empty": (b"", "application/json", 422),
    "not an object": (b"[]", "application/json", 422),
    "bare NaN": (b'{"kind": "token-parity", "params": {"learning_rate": NaN}}', "application/json", 422),
    "deep nesting": (b"[" * 50_000, "application/json", 422),
    "endless digits": (b'{"kind": "resume", "params": {"seed": ' + b"9" * 5000 + b"}}", "application/json", 422),
    "no utf-8": (b'{"kind": "\xff"}', "application/json", 422),
    "a form": (b"kind=resume", "application/x-www-form-urlencoded", 422),
    "as plain text": (b'{"kind": "resume"}', "text/plain", 422),
}


@pytest.mark.parametrize(("body", "content_type", "status"), RAW_BODIES.values(), ids=RAW_BODIES.keys())
def test_unreadable_body_is_told(service: Service, body: bytes, content_type: str, status: int) -> None:
    answer = service.http.post("/api/v1/runs", content=body, headers={"content-type": content_type})
    assert answer.status_code == status
    assert answer.json()["code"]
    fields = [error["field"] for error in answer.json()["errors"]]
    assert fields == (["learning_rate"] if b"NaN" in body else ["body"])


def test_query_refusal_names_its_parameter(service: Service) -> None:
    answer = service.get("/runs?state=queued&state=asleep")
    assert [error["field"] for error in answer.json()["errors"]] == ["state"]


@pytest.fixture(scope="module")
def run_id(service: Service) -> int:
    number = add_run(service.engine, "failed", reason="rank_exit")
    add_stages(service.engine, number, {"train": "failed"})
    return number


QUERIES = {
    "/runs?limit=0": 422,
    "/runs?limit=x": 422,
    "/runs?limit=201": 422,
    "/runs?state=asleep": 422,
    "/runs?verdict=maybe": 422,
    "/runs?cursor=!!": 422,
    "/runs?cursor=AAAA": 422,
    "/runs?cursor=%F0%9F%98%80": 422,
    "/runs?q=%00": 200,
    "/runs?q=%FF%FE": 200,
    "/runs/0": 404,
    "/runs/-1": 404,
    "/runs/x": 422,
    "/runs/99999999999999999999": 404,
    "/runs/{id}/events?after=-1": 422,
    "/runs/{id}/events?after=99999999999999999999": 422,
    "/runs/{id}/events?limit=1001": 422,
    "/runs/{id}/events?limit=1000": 200,
    "/runs/{id}/events?type=nothing": 422,
    "/runs/{id}/events?rank=-1": 422,
    "/runs/{id}/events?rank=99999999999999999999": 422,
    "/runs/{id}/events?stage=%00": 200,
    "/runs/{id}/metrics?max_points=1": 422,
    "/runs/{id}/metrics?max_points=2": 200,
    "/runs/{id}/metrics?key=%00": 200,
    "/runs/{id}/logs/7": 404,
    "/runs/{id}/logs/-1": 404,
    "/runs/{id}/logs/99999999999999999999": 404,
    "/runs/{id}/logs/0": 200,
    "/runs/{id}/logs/0?stage=..": 404,
    "/runs/{id}/logs/0?stage=nowhere": 404,
    "/runs/{id}/logs/0?attempt=2": 404,
    "/runs/{id}/logs/0?stream=passwd": 422,
    "/runs/{id}/logs/0?offset=999999999": 200,
    "/runs/{id}/logs/0?limit=0": 422,
    "/runs/{id}/stream?after=nonsense": 422,
    "/runs/{id}/result": 404,
    "/runs/{id}/export?format=xml": 422,
    "/runs/{id}/export?format=csv&table=checks": 404,
    "/runs/{id}/export?format=csv": 200,
    "/runs/999/events": 404,
    "/runs/999/stream": 404,
    "/runs/999/artifacts": 404,
    "/runs/999/export": 404,
    "/compare": 422,
    "/compare?ids=1": 422,
    "/compare?ids=1,1": 422,
    "/compare?ids=a,b": 422,
    "/compare?ids=1,999": 404,
    "/compare?ids=1,2,3,4,5,6,7,8,9,10,11": 422,
    "/nothing": 404,
}


@pytest.mark.parametrize("query", QUERIES)
def test_odd_query_never_fails(service: Service, run_id: int, query: str) -> None:
    answer = service.get(query.replace("{id}", str(run_id)))
    assert answer.status_code == QUERIES[query], answer.text
    if answer.is_error:
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_odd_key_is_refused(service: Service, key: str) -> None:
    answer = service.post("/runs", {"kind": "resume"}, headers={"Idempotency-Key": key})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "Idempotency-Key"


def test_wrong_method_is_told(service: Service) -> None:
    answer = service.http.put("/api/v1/runs", json={})
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")


def test_head_is_get_without_body(service: Service) -> None:
    for path in ("/healthz", "/api/v1/runs", "/runs", "/openapi.json"):
        head, full = service.http.head(path), service.http.get(path)
        assert (head.status_code, head.content) == (200, b""), path
        assert head.headers["content-type"] == full.headers["content-type"]
    assert service.http.head("/api/v1/runs/999999").status_code == 404
    assert service.http.head("/api/v1/runs/1/stream").status_code == 405


def test_search_for_no_text_finds_nothing(service: Service) -> None:
    service.post("/runs", parity(updates=1))
    assert service.get("/runs", params={"q": ""}).json()["items"]
    assert service.get("/runs", params={"q": "\0"}).json()["items"] == []


def test_announced_body_is_refused_unread(service: Service) -> None:
    size = 50 * 1024 * 1024

    def body() -> Iterator[bytes]:
        yield b"{"
        yield b" " * size

    headers = {"content-type": "application/json", "content-length": str(size + 1)}
    answer = service.http.post("/api/v1/runs", content=body(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_chunked_body_is_refused_on_the_way(service: Service) -> None:
    sent = 0

    def body() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(4096):
            sent += 1
            yield b" " * 65536

    try:
        answer = service.http.post("/api/v1/runs", content=body(), headers={"content-type": "application/json"})
    except httpx.WriteError:  # the service closed the connection before the client had sent everything
        answer = None
    assert answer is None or answer.status_code == 413
    assert sent < 4096
    assert service.http.get("/healthz").status_code == 200


def test_body_at_the_limit_is_read(service: Service) -> None:
    body = b'{"kind": "resume"}'.ljust(1024 * 1024)
    headers = {"content-type": "application/json"}
    assert service.http.post("/api/v1/runs", content=body, headers=headers).status_code == 201
    assert service.http.post("/api/v1/runs", content=body + b" ", headers=headers).status_code == 413
