"""A result in a different form than this version writes: reported on every page, file and command, never a crash."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.settings import Settings
from tests.support.pages_data import add_run, save_result
from tests.support.results import every_panel, make_result
from tests.support.service import Service, running_service

ODD: list[Any] = [
    pytest.param([], id="list"),
    pytest.param("text", id="text"),
    pytest.param({}, id="empty"),
    pytest.param({"checks": 7}, id="checks"),
    pytest.param({"checks": [{"name": "a"}], "panels": [None]}, id="parts"),
]
PLACES = [
    "/runs/{0}", "/compare?ids={0},{1}", "/trends", "/storage", "/runs",
    "/api/v1/runs/{0}", "/api/v1/runs/{0}/result", "/api/v1/runs/{0}/junit", "/api/v1/runs/{0}/page",
    "/api/v1/runs/{0}/export?format=json", "/api/v1/runs/{0}/export?format=csv&table=checks",
    "/api/v1/compare?ids={0},{1}", "/api/v1/trends?kind=token-parity", "/api/v1/runs/export?format=csv&table=checks",
    "/api/v1/badge/token-parity.svg",
]  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as running:
        yield running


def add(service: Service, content: Any = None) -> int:
    run_id = add_run(service.engine, "succeeded", verdict="pass", reason="completed")
    save_result(service.settings, run_id, make_result())
    if content is not None:
        path: Path = service.settings.runs_dir / str(run_id) / "result.json"
        path.write_bytes(orjson.dumps(content))
    return run_id


@pytest.mark.parametrize("content", ODD)
def test_odd_result_is_told(service: Service, content: Any) -> None:
    odd, whole = add(service, content), add(service)
    statuses = {
        place: service.http.get(place.format(odd, whole), headers={"Accept": "text/html"}).status_code
        for place in PLACES
    }
    assert {place: status for place, status in statuses.items() if status >= 500} == {}
    refused = service.get(f"/runs/{odd}/result")
    assert (refused.status_code, refused.json()["code"]) == (404, "no_result")
    assert "damaged" in refused.json()["detail"]
    assert "damaged" in service.http.get(f"/runs/{odd}").text
    assert service.get(f"/runs/{whole}/result").json()["verdict"] == "pass"


def test_least_result_is_shown_everywhere(service: Service) -> None:
    # Only what a result must have, as a kind may write it by hand: no relation, no unit, no notes.
    least = make_result(panels=every_panel()).model_dump(mode="json")
    least["checks"] = [
        {"name": "negative_control", "title": "Rejected", "passed": True, "measured": 0.0103, "limit": 1e-6},
        {"name": "said", "title": "Said", "passed": True},
    ]
    least["panels"] = [
        {name: part for name, part in panel.items() if part not in ("", None)} for panel in least["panels"]
    ]
    small, whole = add(service, least), add(service)
    for place in PLACES:
        found = service.http.get(place.format(small, whole), headers={"Accept": "text/html"})
        assert found.status_code == 200, place
        assert "10,300" not in found.text, f"{place}: a passed check has not used its limit many times"
    checks = service.get(f"/runs/{small}/result").json()["checks"]
    assert [(check["relation"], check["strict"], check["unit"]) for check in checks] == [("at_most", False, "")] * 2
    assert "limit 1e-6" in service.http.get(f"/runs/{small}").text


def test_verdict_must_follow_from_checks(service: Service) -> None:
    run_id = add(service)
    path = service.settings.runs_dir / str(run_id) / "result.json"
    assert service.get(f"/runs/{run_id}/result").status_code == 200
    document = orjson.loads(path.read_bytes())
    document["verdict"] = "fail"
    path.write_bytes(orjson.dumps(document))
    assert "does not follow" in service.get(f"/runs/{run_id}/result").json()["detail"]


OPENED: list[str] = []
"""Result files opened by this process since a test cleared the list; an audit hook cannot be removed."""


@pytest.fixture(scope="module")
def opened() -> list[str]:
    sys.addaudithook(_note_opening)
    return OPENED


def _note_opening(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and str(arguments[0]).endswith("/result.json"):
        OPENED.append(str(arguments[0]))


def test_result_is_read_once_per_request(service: Service, opened: list[str]) -> None:
    left, right = add(service), add(service)
    places = [*PLACES, "/api/v1/runs/{0}/verification"]
    service.http.get("/trends")  # takes the checks of both runs into the database
    for place in places:
        opened.clear()
        assert service.http.get(place.format(left, right), headers={"Accept": "text/html"}).status_code == 200
        own = Counter(Path(name).parent.name for name in opened)
        assert set(own.values()) <= {1}, f"{place} read {own}"
        assert own.keys() <= {str(left), str(right)}, place
    opened.clear()
    service.get(f"/runs/{left}/result")
    assert len(opened) == 1, "the hook sees what the service opens"
