"""The list page's filters, pins and bulk buttons, and labels edited on pages, as forms and as fragments."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from app.settings import Settings
from tests.support.pages_data import HOSTILE, add_run
from tests.support.service import Service, running_service, shown

HTML = {"Accept": "text/html"}
HTMX = {"Accept": "text/html", "HX-Request": "true"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"), root_path="/lab")
    with running_service(settings) as running:
        yield running


@pytest.fixture
def runs(service: Service) -> Iterator[dict[str, int]]:
    """Four runs, alone in the list."""
    common: dict[str, Any] = {"reason": "completed"}
    engine = service.engine
    yield {
        "plain": add_run(engine, "succeeded", verdict="pass", **common),
        "tagged": add_run(engine, "succeeded", verdict="fail", tags=["nightly", "a,b"], kind="cifar", **common),
        "queued": add_run(engine, "queued", tags=["nightly"], backend=None, device=None),
        "pinned": add_run(engine, "failed", pinned=True, name="kept", **common),
    }
    for item in service.get("/runs").json()["items"]:
        if item["state"] == "queued":
            service.post(f"/runs/{item['id']}/cancel")
        service.http.delete(f"/api/v1/runs/{item['id']}")


def page(service: Service, address: str) -> str:
    return shown(service.http, address)


def row_ids(text: str) -> list[int]:
    return [int(number) for number in re.findall(r'id="run-(\d+)"', text)]


def names(runs: dict[str, int], text: str) -> list[str]:
    known = {number: name for name, number in runs.items()}
    return [known[number] for number in row_ids(text)]


def send(service: Service, path: str, headers: dict[str, str] = HTML, **fields: Any) -> httpx.Response:
    return service.http.post(path, data=fields, headers=headers)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("", ["pinned", "queued", "tagged", "plain"]),
        ("sort=newest", ["pinned", "queued", "tagged", "plain"]),
        ("sort=oldest", ["plain", "tagged", "queued", "pinned"]),
        ("state=queued&state=failed", ["pinned", "queued"]),
        ("state=", ["pinned", "queued", "tagged", "plain"]),
        ("verdict=pass&verdict=fail&kind=cifar", ["tagged"]),
        ("tag=nightly", ["queued", "tagged"]),
        ("tag=nightly&tag=%22a%2Cb%22", ["tagged"]),
        ("tag=nightly%2C+%22a%2Cb%22", ["tagged"]),
        ("tag=a%2Cb", []),
        ("pinned=1", ["pinned"]),
        ("pinned=0&state=succeeded", ["tagged", "plain"]),
        ("sort=longest&pinned=1", ["pinned"]),
    ],
)
def test_filters_combine_in_the_address(
    service: Service, runs: dict[str, int], address: str, expected: list[str]
) -> None:
    assert names(runs, page(service, f"/runs?{address}")) == expected
    assert names(runs, page(service, f"/runs/rows?{address}")) == expected


def test_pinned_run_leads_however_old(service: Service, runs: dict[str, int]) -> None:
    service.http.patch(f"/api/v1/runs/{runs['plain']}", json={"pinned": True})
    assert names(runs, page(service, "/")) == ["pinned", "plain", "queued", "tagged"]
    assert names(runs, page(service, "/runs?sort=newest")) == ["pinned", "queued", "tagged", "plain"]


def test_tag_of_a_row_narrows_further(service: Service, runs: dict[str, int]) -> None:
    text = page(service, "/runs?verdict=fail&sort=oldest&tag=nightly")
    found = [target.replace("&amp;", "&") for target in re.findall(r'class="tag" href="/lab/runs\?([^"]*)"', text)]
    assert found == [
        "verdict=fail&tag=nightly&tag=%22a%2Cb%22&sort=oldest",
        "verdict=fail&tag=nightly&sort=oldest",
    ]
    assert names(runs, page(service, f"/runs?{found[0]}")) == ["tagged"]


def test_star_answers_rows_to_script_and_list_to_form(service: Service, runs: dict[str, int]) -> None:
    path = f"/runs/{runs['plain']}/edit"
    script = send(service, path, HTMX, pinned="1", runs="state=succeeded")
    assert names(runs, script.text) == ["plain", "tagged"]
    assert 'aria-pressed="true"' in script.text
    form = send(service, path, pinned="", runs="state=succeeded")
    assert (form.status_code, form.headers["location"]) == (303, "/lab/runs?state=succeeded")
    assert service.get(f"/runs/{runs['plain']}").json()["pinned"] is False


@pytest.mark.parametrize(
    "query", ["//evil.example/", "https://evil.example", "\r\nX: y", "a=b&" * 300, "sort=" + "x" * 99]
)
def test_way_back_stays_in_the_list(service: Service, runs: dict[str, int], query: str) -> None:
    answer = send(service, f"/runs/{runs['plain']}/edit", pinned="1", runs=query)
    assert (answer.status_code, answer.headers["location"]) == (303, "/lab/runs")


def test_form_changes_only_what_it_has(service: Service, runs: dict[str, int]) -> None:
    path = f"/runs/{runs['tagged']}"
    assert send(service, f"{path}/edit", name="new", notes="a\r\nb").headers["location"] == f"/lab{path}"
    assert send(service, f"{path}/edit", tags='x, "a,b"').status_code == 303
    found = service.get(path).json()
    assert (found["name"], found["notes"], found["tags"], found["pinned"]) == ("new", "a\nb", ["a,b", "x"], False)
    assert send(service, f"{path}/edit", name="", tags="").status_code == 303  # empty is not absent
    found = service.get(path).json()
    assert (found["name"], found["notes"], found["tags"]) == ("", "a\nb", [])
    assert send(service, f"{path}/edit", shown="colour").status_code == 422


def test_label_opens_and_closes_in_place(service: Service, runs: dict[str, int]) -> None:
    path = f"/runs/{runs['tagged']}"
    send(service, f"{path}/edit", name=HOSTILE, notes=HOSTILE)
    for label, field in (("name", "edit-name"), ("tags", "edit-tags"), ("notes", "edit-notes")):
        closed, opened = page(service, f"{path}/label/{label}"), page(service, f"{path}/label/{label}?edit=1")
        assert field not in closed
        assert f'id="{field}"' in opened
        assert "hx-morph-skip" in opened
        assert f'id="{field}"' in page(service, f"{path}?edit={label}")  # the same without a script
        assert "<script>alert" not in closed + opened
    assert 'value="&#34;a,b&#34;, nightly"' in page(service, f"{path}/label/tags?edit=1")
    assert "edit-" not in page(service, f"{path}?edit=colour")
    assert service.http.get(f"{path}/label/colour", headers=HTML).status_code == 422
    assert service.http.get("/runs/999/label/name", headers=HTML).status_code == 404


def test_refused_label_keeps_what_was_typed(service: Service, runs: dict[str, int]) -> None:
    path = f"/runs/{runs['tagged']}/edit"
    typed = "x" * 201
    part = send(service, path, HTMX, name=typed, shown="name")
    assert part.status_code == 422
    assert f'value="{typed}"' in part.text
    assert "at most 200 characters" in part.text
    assert 'aria-invalid="true"' in part.text
    whole = send(service, path, name=typed, shown="name")  # without a script the whole page is returned
    assert whole.status_code == 422
    assert f'value="{typed}"' in whole.text
    assert "at most 200 characters" in whole.text
    assert 'id="run-verdict"' in whole.text
    saved = send(service, path, HTMX, name="y" * 200, shown="name")
    assert saved.status_code == 200
    assert "edit-name" not in saved.text


@pytest.mark.parametrize(
    ("fields", "text", "check"),
    [
        ({"action": "tag", "tags": "new, nightly"}, "tagged new, nightly", lambda run: "new" in run["tags"]),
        ({"action": "untag", "tags": "nightly"}, "tags removed: nightly", lambda run: run["tags"] == ["a,b"]),
        ({"action": "pin"}, "pinned", lambda run: run["pinned"]),
        ({"action": "unpin"}, "nothing changed", lambda run: not run["pinned"]),
    ],
)
def test_bulk_changes_labels(
    service: Service, runs: dict[str, int], fields: dict[str, Any], text: str, check: Any
) -> None:
    answer = send(service, "/runs/bulk", **fields, run=[runs["tagged"], 999], runs="sort=oldest")
    assert answer.status_code == 200
    assert f"Run {runs['tagged']}</a>: {text}" in answer.text
    assert "there is no run 999" in answer.text
    assert 'href="/lab/runs?sort=oldest"' in answer.text
    assert check(service.get(f"/runs/{runs['tagged']}").json())
    assert service.get(f"/runs/{runs['plain']}").json()["tags"] == []


def test_bulk_delete_leaves_the_unfinished(service: Service, runs: dict[str, int]) -> None:
    answer = send(service, "/runs/bulk", action="delete", run=[runs["plain"], runs["queued"]])
    assert f"<li>Run {runs['plain']}: deleted</li>" in answer.text
    assert f"Run {runs['queued']}</a>: run {runs['queued']} is queued" in answer.text
    assert set(row_ids(page(service, "/runs"))) == {runs["tagged"], runs["queued"], runs["pinned"]}


@pytest.mark.parametrize(
    "fields", [{"action": "tag", "tags": " , "}, {"action": "tag", "tags": "x" * 65}, {"action": ""}]
)
def test_bulk_refuses_before_it_starts(service: Service, runs: dict[str, int], fields: dict[str, Any]) -> None:
    assert send(service, "/runs/bulk", **fields, run=[runs["tagged"]]).status_code == 422
    assert service.get(f"/runs/{runs['tagged']}").json()["tags"] == ["a,b", "nightly"]
    assert "No run was selected" in send(service, "/runs/bulk", action="pin").text


def test_viewer_reads_labels_and_changes_none(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, token=SecretStr("operator-token"), viewer_token=SecretStr("viewer-token"))
    with running_service(settings) as service:
        run_id = add_run(service.engine, "succeeded", verdict="pass", notes="for all", tags=["t"], pinned=True)
        with service.client("viewer-token") as viewer:
            text = shown(viewer, f"/runs/{run_id}?edit=notes")
            assert "for all" in text
            assert "★ pinned" in text
            assert "data-edit" not in text
            assert "edit-notes" not in text
            assert "edit-notes" not in shown(viewer, f"/runs/{run_id}/label/notes?edit=1")
            rows = shown(viewer, "/runs")
            assert "★ pinned" in rows
            assert 'type="checkbox" name="run"' not in rows
            assert "formaction" not in rows
            for path, data in (
                (f"/runs/{run_id}/edit", {"pinned": ""}),
                ("/runs/bulk", {"action": "unpin", "run": "1"}),
            ):
                assert viewer.post(path, data=data, headers=HTML).status_code == 403
            assert viewer.get(f"/api/v1/runs/{run_id}").json()["pinned"] is True
