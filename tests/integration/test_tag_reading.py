"""A tag with a comma remains one tag wherever tags are written or read: pages, API, commands, filters, files."""

import csv
import html
import io
import re
from collections.abc import Iterator
from typing import Any

import pytest

from app.runs.tags import tags_from_text
from app.settings import Settings
from tests.support.cli import asking
from tests.support.pages_data import add_run, save_result
from tests.support.results import make_result
from tests.support.service import Service, running_service

ODD = ['6" rack', "a, b", "plain"]
"""As the product stores them: sorted, each once."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("tags"))) as running:
        yield running


@pytest.fixture
def run_id(service: Service) -> int:
    made = add_run(service.engine, "succeeded", verdict="pass", reason="completed", tags=ODD)
    save_result(service.settings, made, make_result())
    return made


def tags(service: Service, run_id: int) -> Any:
    return service.get(f"/runs/{run_id}").json()["tags"]


def typed(page: str, field: str) -> str:
    found = re.search(rf'id="{field}"[^>]*? value="([^"]*)"', page)
    assert found is not None
    return html.unescape(found[1])


def send(service: Service, path: str, **fields: Any) -> Any:
    return service.http.post(path, data=fields, follow_redirects=False)


def test_launch_with_changes_keeps_tags(service: Service, run_id: int) -> None:
    text = typed(service.http.get(f"/launch?like={run_id}").text, "in-tags")
    assert text == '"6"" rack", "a, b", plain'
    answer = send(service, "/launch", kind="token-parity", preset="quick", tags=text)
    assert answer.status_code == 303
    again = int(answer.headers["location"].rsplit("/", 1)[1])
    assert tags(service, again) == ODD
    # Names separated by commas, as this page once filled the field: different tags.
    answer = send(service, "/launch", kind="token-parity", preset="quick", tags=", ".join(ODD))
    assert tags(service, int(answer.headers["location"].rsplit("/", 1)[1])) != ODD


def test_refused_launch_keeps_what_was_typed(service: Service) -> None:
    text = '"a, b", ' + "x" * 65
    answer = send(service, "/launch", kind="token-parity", preset="quick", tags=text)
    assert answer.status_code == 422
    assert typed(answer.text, "in-tags") == text
    assert "at most 64 characters" in answer.text


def test_field_of_the_run_page_keeps_tags(service: Service, run_id: int) -> None:
    page = service.http.get(f"/runs/{run_id}?edit=tags").text
    assert send(service, f"/runs/{run_id}/edit", tags=typed(page, "edit-tags")).status_code == 303
    assert tags(service, run_id) == ODD
    changed = send(service, "/runs/bulk", action="untag", run=[run_id], tags='"a, b"')
    assert "&#34;a, b&#34;" in changed.text
    assert tags(service, run_id) == ['6" rack', "plain"]


@pytest.mark.parametrize(
    ("place", "values", "found"),
    [
        ("/runs", ['"a, b"'], True),
        ("/runs", ['"a, b", plain'], True),
        ("/runs", ["a, b"], False),  # two tags, a and b
        ("/api/v1/runs", ["a, b"], True),
        ("/api/v1/runs", [" a, b ", "plain"], True),
        ("/api/v1/runs", ["a"], False),
        ("/api/v1/runs", ['"a, b"'], False),  # each value is one tag, exactly: these quotes are part of it
    ],
)
def test_filters_find_the_tag(service: Service, run_id: int, place: str, values: list[str], found: bool) -> None:
    text = service.http.get(place, params={"tag": values, "sort": "newest"}).text
    shown = f'href="/runs/{run_id}"' in text if place == "/runs" else f'"id":{run_id},' in text
    assert shown is found


@pytest.mark.parametrize("remote", [False, True])
def test_commands_take_a_tag_as_it_is(service: Service, run_id: int, tmp_path: Any, remote: bool) -> None:
    port = service.url.rsplit(":", 1)[1] if remote else None
    ask = asking(service.settings, port, tmp_path / "none")
    assert ask("edit", str(run_id), "--add-tag", "c, d", "--remove-tag", "a, b").returncode == 0
    assert tags(service, run_id) == ['6" rack', "c, d", "plain"]
    listed = ask("list", "--tag", "c, d", "--tag", "plain", "--sort", "newest", "--json").document["items"]
    assert listed[0]["id"] == run_id
    assert run_id not in [run["id"] for run in ask("list", "--tag", "c", "--json").document["items"]]
    made = ask("run", "token-parity", "--detach", "--tag", "a, b", "--tag", "x", "--json").document
    assert made["tags"] == ["a, b", "x"]


def test_files_write_tags_to_be_read_again(service: Service, run_id: int) -> None:
    answer = service.get("/runs/export", params={"format": "csv", "q": str(run_id)})
    row = next(row for row in csv.DictReader(io.StringIO(answer.text)) if int(row["id"]) == run_id)
    assert tags_from_text(row["tags"]) == ODD
    page = service.get(f"/runs/{run_id}/page").text
    assert tags_from_text(html.unescape(re.findall(r"Tags: (.*?)</p>", page)[0])) == ODD
