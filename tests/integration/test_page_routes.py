"""Pages over HTTP: hostile texts, errors as pages, the stream's cursor, filters, prefixes, roles."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from app.runs.telemetry.cursor import decode
from app.settings import Settings
from tests.support.pages_data import HOSTILE, fill
from tests.support.service import Service, running_service, shown

HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, dict[str, int]]]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("pages"))
    with running_service(settings) as service:
        yield service, fill(settings, service.engine)


def page(service: Service, path: str, **arguments: object) -> httpx.Response:
    return service.http.get(path, headers=HTML, **arguments)  # type: ignore[arg-type]


def test_hostile_text_is_escaped_everywhere(filled: tuple[Service, dict[str, int]]) -> None:
    service, runs = filled
    failed = runs["failed"]
    for path in (
        "/runs",
        f"/runs/{failed}",
        f"/compare?ids={failed},{runs['passed']}",
        "/compare",
        "/runs/rows",
        "/audit",
        "/storage?newest=0",
        "/deliveries",
    ):
        text = shown(service.http, path)
        assert "&lt;img src=x onerror=alert(1)&gt;" in text
        assert "<img src=x" not in text
        assert "<script>alert" not in text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/runs/999", 404),
        ("/runs/abc", 404),
        ("/runs/99999999999999999999", 404),
        ("/compare?ids=1", 422),
        ("/compare?ids=1,999", 422),
        ("/runs?cursor=bad", 422),
        ("/runs/1/live?after=bad", 422),
        ("/runs/999/live", 404),
        ("/runs/1/preview?name=../config.json", 404),
        ("/nothing", 404),
    ],
)
def test_errors_are_pages(filled: tuple[Service, dict[str, int]], path: str, status: int) -> None:
    answer = page(filled[0], path)
    assert answer.status_code == status
    assert "<h1>" in answer.text
    assert "text/html" in answer.headers["content-type"]


def test_filters_narrow_and_page_on(filled: tuple[Service, dict[str, int]]) -> None:
    service, runs = filled
    rows = re.findall(r'id="run-(\d+)"', page(service, "/runs?state=succeeded&verdict=pass").text)
    assert {int(row) for row in rows} == {runs["passed"], runs["cifar"]}
    assert "No matching runs" in page(service, "/runs?q=nothing-like-this").text
    assert re.findall(r'id="run-(\d+)"', page(service, "/runs?tag=nightly").text) == [str(runs["passed"])]


def messages(service: Service, path: str, **headers: str) -> list[str]:
    """Return the messages of a stream that ends by itself."""
    answer = service.http.get(path, headers=headers)
    assert answer.status_code == 200
    text = answer.text
    return [message for message in text.split("\n\n") if message and not message.startswith(":")]


def test_stream_of_ended_run_closes_itself(filled: tuple[Service, dict[str, int]]) -> None:
    service, runs = filled
    found = messages(service, f"/runs/{runs['passed']}/live")
    assert found[-1] == "event: end\ndata: final"
    assert "Verdict: pass" in found[-2]
    assert all(message.startswith("id: ") for message in found[:-1] if "event: numbers" not in message)
    assert sum("update 11 done" in message for message in found) == 1


def test_stream_goes_on_where_page_ended(filled: tuple[Service, dict[str, int]]) -> None:
    service, runs = filled
    path = f"/runs/{runs['passed']}"
    whole = messages(service, f"{path}/live")
    last = next(line for line in whole[-2].splitlines() if line.startswith("id: ")).removeprefix("id: ")
    for again in (
        messages(service, f"{path}/live?after={last}"),
        messages(service, f"{path}/live", **{"Last-Event-ID": last}),
    ):
        assert not any("log-line" in message for message in again)
        assert again[-1] == "event: end\ndata: final"
    half = replace(decode(last), event=10).encode()  # of 13 messages
    lines = "".join(messages(service, f"{path}/live?after={last}", **{"Last-Event-ID": half}))
    assert lines.count('class="log-line') == 3


def test_form_from_elsewhere_is_refused(filled: tuple[Service, dict[str, int]]) -> None:
    service, runs = filled
    path = f"/runs/{runs['running']}/cancel"
    answer = service.http.post(path, headers={**HTML, "Origin": "http://elsewhere.example"})
    assert answer.status_code == 403
    assert service.get(f"/runs/{runs['running']}").json()["state"] == "running"


def test_bulk_tells_what_became_of_each(filled: tuple[Service, dict[str, int]]) -> None:
    service, runs = filled
    ids = [str(runs["queued"]), str(runs["passed"]), "999"]
    answer = service.http.post("/runs/bulk", data={"action": "cancel", "run": ids}, headers=HTML)
    assert answer.status_code == 200
    assert f"Run {runs['queued']}</a>: cancel requested" in answer.text
    assert "there is nothing to cancel" in answer.text
    assert "there is no run 999" in answer.text
    unknown = service.http.post("/runs/bulk", data={"action": "x", "run": ["1"]})
    assert unknown.status_code == 422
    assert "action: must be one of cancel, delete, tag" in unknown.text


def test_text_artifact_is_previewed_as_text(filled: tuple[Service, dict[str, int]]) -> None:
    service, runs = filled
    file = service.settings.runs_dir / str(runs["passed"]) / "artifacts" / "note.txt"
    file.write_text(HOSTILE)
    assert 'hx-trigger="toggle once"' in page(service, f"/runs/{runs['passed']}").text
    text = shown(service.http, f"/runs/{runs['passed']}/preview?name=note.txt")
    assert "&lt;script&gt;" in text
    assert "<script>" not in text


def test_labels_out_of_bounds_change_nothing(filled: tuple[Service, dict[str, int]]) -> None:
    service, runs = filled
    path = f"/runs/{runs['passed']}/edit"
    answer = service.http.post(path, data={"name": "x" * 201, "tags": "a"}, headers=HTML)
    assert answer.status_code == 422
    assert "name" in answer.text
    assert service.get(f"/runs/{runs['passed']}").json()["tags"] == ["nightly"]
    assert service.http.post(path, data={"name": "baseline", "tags": "nightly", "pinned": "1"}).status_code == 303
    assert service.get(f"/runs/{runs['passed']}").json()["pinned"] is True


def test_viewer_sees_no_buttons(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, token=SecretStr("operator-token"), viewer_token=SecretStr("viewer-token"))
    with running_service(settings) as service:
        runs = fill(settings, service.engine)
        path = f"/runs/{runs['passed']}"
        viewer, operator = service.client("viewer-token"), service.client("operator-token")
        with viewer, operator:
            assert 'method="post" action="/runs' in shown(operator, path)
            seen = shown(viewer, path)
            assert "Verdict: pass" in seen
            assert 'method="post" action="/runs' not in seen
            assert viewer.post(f"{path}/delete", headers=HTML).status_code == 403
        assert service.http.get(path, headers=HTML).status_code == 303
        assert "Sign in" in service.http.get("/login", headers=HTML).text
