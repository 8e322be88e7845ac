"""A list walked to its end has every run once: recorded in one burst, without times to sort by, changed on the way."""

import html
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

import pytest

from app.clock import now
from app.runs.ordering import Order
from app.settings import Settings
from tests.support.cli import call
from tests.support.pages_data import add_run
from tests.support.service import Service, running_service

HTML = {"Accept": "text/html"}
MANY: Final = 60
LIMIT: Final = 7
ORDERS = [order.value for order in Order]
Between = Callable[[int], None]
"""Called after every page with the last run on it."""


@pytest.fixture
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as running:
        yield running


def burst(service: Service, count: int) -> list[int]:
    """Record runs one after the other and cancel each while it waits: none of them ever started."""
    ids = [service.post("/runs", {"kind": "token-parity"}).json()["id"] for _ in range(count)]
    for run_id in ids:
        assert service.post(f"/runs/{run_id}/cancel").status_code == 202
    return ids


def walk(service: Service, sort: str, between: Between | None = None) -> list[int]:
    """Return the runs of a list, page by page over the API."""
    found: list[int] = []
    cursor = None
    while True:
        params = {"sort": sort, "limit": LIMIT} | ({"cursor": cursor} if cursor else {})
        page = service.get("/runs", params=params)
        assert page.status_code == 200, page.text
        found += [item["id"] for item in page.json()["items"]]
        cursor = page.json()["next_cursor"]
        if cursor is None:
            return found
        if between is not None:
            between(found[-1])


def walk_pages(service: Service, sort: str) -> list[int]:
    """Return the runs of a list as seen by a person who follows the links to the next page."""
    found: list[int] = []
    address = f"?sort={sort}"
    while address:
        text = service.http.get(f"/runs{address}", headers=HTML).text
        found += map(int, re.findall(r'<tr id="run-(\d+)"', text))
        following = re.search(r'href="(\?[^"]*)" rel="next"', text)
        address = html.unescape(following[1]) if following else ""
    return found


def walk_command(service: Service, sort: str) -> list[int]:
    found: list[int] = []
    more: list[str] = []
    while True:
        done = call(
            "list", "--json", "--sort", sort, "--limit", "25", *more, data_dir=service.settings.data_dir
        ).document
        found += [item["id"] for item in done["items"]]
        if done["next_cursor"] is None:
            return found
        more = ["--cursor", done["next_cursor"]]


def test_never_started_runs_are_all_there(service: Service) -> None:
    ids = burst(service, MANY)
    for sort in ORDERS:
        found = walk(service, sort)
        assert (len(found), sorted(found)) == (MANY, ids), sort
        assert walk_pages(service, sort) == found
        assert walk_command(service, sort) == found
        for table, key in (("runs", "id"), ("checks", "run_id")):
            exported = service.get("/runs/export", params={"sort": sort, "table": table}).json()["items"]
            assert [item[key] for item in exported] == ([] if table == "checks" else found)


@pytest.mark.parametrize("sort", ORDERS)
def test_changes_on_the_way_skip_and_repeat_nothing(service: Service, sort: str) -> None:
    """Between two pages the run of the cursor is deleted, and five more are recorded."""
    ids = burst(service, 20)
    for number in range(20):
        end = now() - timedelta(hours=number // 3)  # three at a time end at one moment, and take as long
        add_run(service.engine, "succeeded", started_at=end - timedelta(seconds=number // 3), finished_at=end)
    before = walk(service, sort)
    assert len(before) == 40
    gone: list[int] = []

    def change(last: int) -> None:
        assert service.http.delete(f"/api/v1/runs/{last}").status_code == 204
        gone.append(last)
        burst(service, 5)

    found = walk(service, sort, change)
    assert len(gone) >= 4
    assert len(set(found)) == len(found)
    assert [run_id for run_id in found if run_id in before] == before
    assert set(ids) < set(before)


def test_never_started_run_has_no_duration(service: Service) -> None:
    (run_id,) = burst(service, 1)
    run = service.get(f"/runs/{run_id}").json()
    times: dict[str, Any] = {name: run[name] for name in ("started_at", "took_seconds")}
    assert times == {"started_at": None, "took_seconds": None}
    assert service.get("/runs").json()["items"][0]["took_seconds"] is None
    head, row = service.get("/runs/export?format=csv").text.splitlines()
    told = dict(zip(head.split(","), row.split(","), strict=False))
    assert (told["started_at"], told["took_seconds"]) == ("", "")
    text = service.http.get("/runs?col=took", headers=HTML).text
    assert '<td class="num">–</td>' in text
    page = service.http.get(f"/runs/{run_id}", headers=HTML).text
    assert re.search(r"<dt>Started</dt><dd>–</dd>", page)
    assert " after " not in page.split("<dt>Finished</dt>", 1)[1].split("</dd>", 1)[0]
    again = [service.get("/runs").json()["items"][0] for _ in range(2)]
    assert again[0] == again[1]  # no memory growth
