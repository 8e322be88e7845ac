"""Labels of a run changed over the API: only given ones, within the limits of a launch, only by the operator."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from app.db import read_session, write_session
from app.runs.models import Run
from app.runs.store import get_run_document
from app.settings import Settings
from tests.support.pages_data import add_run
from tests.support.service import Service, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as running:
        yield running


@pytest.fixture
def run_id(service: Service) -> int:
    return add_run(service.engine, "succeeded", verdict="pass", name="before", tags=["a", "b"], notes="kept")


def patch(service: Service, run_id: int, document: Any, **arguments: Any) -> httpx.Response:
    return service.http.patch(f"/api/v1/runs/{run_id}", json=document, **arguments)


def labels(document: dict[str, Any]) -> tuple[Any, ...]:
    return document["name"], document["tags"], document["notes"], document["pinned"]


def told(service: Service, run_id: int) -> list[str]:
    return [item["detail"] for item in service.get("/audit", params={"run": run_id, "action": "edit"}).json()["items"]]


@pytest.mark.parametrize(
    ("change", "expected", "detail"),
    [
        ({"name": " after "}, ("after", ["a", "b"], "kept", False), "name 'before' to 'after'"),
        ({"tags": ["c", "b", "c"]}, ("before", ["b", "c"], "kept", False), "tags +'c' -'a'"),
        ({"tags": []}, ("before", [], "kept", False), "tags -'a' -'b'"),
        ({"add_tags": ["c", "a"]}, ("before", ["a", "b", "c"], "kept", False), "tags +'c'"),
        ({"remove_tags": ["a", "zz"]}, ("before", ["b"], "kept", False), "tags -'a'"),
        ({"notes": "x\r\ny\tz"}, ("before", ["a", "b"], "x\ny\tz", False), "notes from 4 to 5 characters"),
        ({"pinned": True}, ("before", ["a", "b"], "kept", True), "pinned yes"),
        ({"name": "", "pinned": True}, ("", ["a", "b"], "kept", True), "name 'before' to ''; pinned yes"),
    ],
)  # fmt: skip
def test_only_given_labels_change(
    service: Service, run_id: int, change: dict[str, Any], expected: tuple[Any, ...], detail: str
) -> None:
    answer = patch(service, run_id, change)
    assert answer.status_code == 200
    assert labels(answer.json()) == expected
    assert labels(service.get(f"/runs/{run_id}").json()) == expected
    assert told(service, run_id) == [detail]


@pytest.mark.parametrize("change", [{}, {"name": "before"}, {"tags": ["b", "a"]}, {"remove_tags": ["c"]}])
def test_change_of_nothing_leaves_no_entry(service: Service, run_id: int, change: dict[str, Any]) -> None:
    assert patch(service, run_id, change).status_code == 200
    assert told(service, run_id) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "x" * 201}, "name"),
        ({"name": "line\nbreak"}, "name"),
        ({"name": None}, "name"),
        ({"tags": ["x" * 65]}, "tags"),
        ({"tags": [" "]}, "tags"),
        ({"tags": [f"t{number}" for number in range(21)]}, "tags"),
        ({"tags": "a"}, "tags"),
        ({"add_tags": [f"t{number}" for number in range(19)]}, "add_tags"),
        ({"tags": ["a"], "add_tags": ["b"]}, "either tags"),
        ({"add_tags": ["b"], "remove_tags": ["b"]}, "the same tag"),
        ({"notes": "x" * 20_001}, "notes"),
        ({"notes": "nul\0"}, "notes"),
        ({"pinned": "yes"}, "pinned"),
        ({"state": "succeeded"}, "state"),
        ([], "object"),
    ],
)
def test_refusal_names_field_and_changes_nothing(service: Service, run_id: int, change: Any, field: str) -> None:
    answer = patch(service, run_id, change)
    assert answer.status_code == 422
    assert field in answer.json()["detail"]
    assert labels(service.get(f"/runs/{run_id}").json()) == ("before", ["a", "b"], "kept", False)
    assert told(service, run_id) == []


def test_largest_labels_are_taken(service: Service, run_id: int) -> None:
    largest = {"name": "x" * 200, "tags": [f"{number:064}" for number in range(20)], "notes": "ü" * 20_000}
    assert patch(service, run_id, largest).status_code == 200
    # Twenty tags are the most: one more is refused, one for another is not.
    assert patch(service, run_id, {"add_tags": ["more"]}).status_code == 422
    assert patch(service, run_id, {"add_tags": ["more"], "remove_tags": [f"{0:064}"]}).status_code == 200


def test_unknown_or_vanishing_run_is_not_edited(service: Service, run_id: int) -> None:
    assert patch(service, 999_999, {"name": "x"}).status_code == 404
    assert patch(service, 2**63, {"name": "x"}).status_code == 404
    with write_session(service.engine) as session:
        run = session.get_one(Run, run_id)
        run.deleting = True
        session.add(run)
    assert patch(service, run_id, {"name": "x"}).status_code == 404


def test_description_states_no_default(service: Service) -> None:
    schema = service.http.get("/openapi.json").json()["components"]["schemas"]["Changes"]
    assert set(schema["properties"]) == {"name", "tags", "add_tags", "remove_tags", "notes", "pinned"}
    assert "required" not in schema
    assert not any("default" in field for field in schema["properties"].values())


def test_viewer_edits_nothing(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, token=SecretStr("operator-token"), viewer_token=SecretStr("viewer-token"))
    with running_service(settings) as service:
        run_id = add_run(service.engine, "succeeded", verdict="pass", name="before")
        path = f"/api/v1/runs/{run_id}"
        with service.client("viewer-token") as viewer, service.client("operator-token") as operator:
            assert viewer.patch(path, json={"name": "x"}).status_code == 403
            assert service.http.patch(path, json={"name": "x"}).status_code == 401
            foreign = {"Origin": "http://elsewhere.example"}
            assert operator.patch(path, json={"name": "x"}, headers=foreign).status_code == 403
            with read_session(service.engine) as session:
                assert get_run_document(session, run_id)["name"] == "before"
            assert operator.patch(path, json={"name": "x"}).json()["name"] == "x"
            assert operator.get(f"/api/v1/audit?run={run_id}").json()["items"][0]["actor"] == "operator"
