"""The list in every order, page by page without a gap; its columns and order in the address; the audit log."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import Connection, Select
from sqlmodel import col, select

from app.clock import now
from app.db import write_session
from app.runs.models import AuditEntry, Run
from app.runs.ordering import Order, parts, read_cursor, sorted_by
from app.runs.outbox import record_checks
from app.runs.store import RunFilters
from app.settings import Settings
from tests.support.cli import call
from tests.support.pages_data import add_run
from tests.support.service import Service, running_service, shown
from trainer.contract.result import Check

HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Eight runs: 1 to 5 ended, the later the number the earlier, two of them at one moment and after equal times.

    The others are running, waiting, and cancelled while waiting; 2 and 6 are pinned.
    """
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as running:
        end = now()
        for hours, seconds in ((0, 10.5), (1, 3600), (2, 20), (2, 20), (3, 0.125)):
            ended = end - timedelta(hours=hours)
            times: dict[str, Any] = {"started_at": ended - timedelta(seconds=seconds), "finished_at": ended}
            add_run(running.engine, "succeeded", verdict="pass", pinned=hours == 1, **times)
        add_run(running.engine, "running", moves=("starting",), pinned=True, name="two", tags=["odd"])
        add_run(running.engine, "queued", backend=None, device=None, name="one", tags=["odd"])
        add_run(running.engine, "cancelled", started_at=None, finished_at=end - timedelta(hours=4))
        yield running


def pages(service: Service, sort: str, limit: int) -> list[int]:
    found: list[int] = []
    cursor = None
    while True:
        params = {"sort": sort, "limit": limit} | ({"cursor": cursor} if cursor else {})
        page = service.get("/runs", params=params).json()
        found += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("newest", [8, 7, 6, 5, 4, 3, 2, 1]),
        ("oldest", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("pinned", [6, 2, 8, 7, 5, 4, 3, 1]),
        ("finished", [1, 2, 4, 3, 5, 8, 7, 6]),
        ("longest", [2, 4, 3, 1, 5, 8, 7, 6]),
        ("shortest", [5, 1, 3, 4, 2, 6, 7, 8]),
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 3, 50])
def test_every_order_pages_without_gaps(service: Service, sort: str, expected: list[int], limit: int) -> None:
    assert pages(service, sort, limit) == expected


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("order", "index"),
    [
        (Order.NEWEST, ""),
        (Order.OLDEST, ""),
        (Order.PINNED, "ix_run_pinned_id"),
        (Order.FINISHED, "ix_run_finished_at"),
        (Order.LONGEST, "ix_run_took_seconds"),
        (Order.SHORTEST, "ix_run_took_seconds"),
    ],
)
def test_orders_walk_an_index(service: Service, order: Order, index: str) -> None:
    owner = RunFilters().digest()
    cursors = [
        service.get("/runs", params={"sort": order.value, "limit": limit}).json()["next_cursor"] for limit in (2, 7)
    ]
    places = [None, *(read_cursor(order, owner, cursor) for cursor in cursors)]
    with service.engine.connect() as connection:
        for condition in [part for place in places for part in parts(order, place)]:
            query = select(Run).where(col(Run.deleting).is_(False), *condition)
            told = plan_of(connection, query.order_by(*sorted_by(order)).limit(51))
            assert index in told
            assert "TEMP B-TREE" not in told
            assert "TEMP B-TREE" in plan_of(connection, query.order_by(col(Run.name)).limit(51))  # no index has it


def plan_of(connection: Connection, query: Select[Any]) -> str:
    """Return SQLite's query plan."""
    compiled = query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
    return " ".join(row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}"))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"pinned": True}, [6, 2]),
        ({"pinned": False}, [8, 7, 5, 4, 3, 1]),
        ({"pinned": True, "state": "succeeded"}, [2]),
        ({"pinned": True, "sort": "longest"}, [2, 6]),
        ({"pinned": False, "sort": "shortest"}, [5, 1, 3, 4, 7, 8]),
        ({"state": ["queued", "running"]}, [7, 6]),
    ],
)
def test_pins_narrow_the_list(service: Service, params: dict[str, Any], expected: list[int]) -> None:
    assert [item["id"] for item in service.get("/runs", params=params).json()["items"]] == expected


def test_command_sorts_and_narrows_alike(service: Service) -> None:
    def listed(*arguments: str) -> list[int]:
        done = call("list", "--json", *arguments, data_dir=service.settings.data_dir)
        return [item["id"] for item in done.document["items"]]

    assert listed("--sort", "longest") == [2, 4, 3, 1, 5, 8, 7, 6]
    assert listed("--sort", "shortest", "--not-pinned") == [5, 1, 3, 4, 7, 8]
    assert listed("--pinned") == [6, 2]
    assert "3600" in call("list", "--sort", "longest", "--limit", "1", data_dir=service.settings.data_dir).stdout
    assert call("list", "--sort", "name", data_dir=service.settings.data_dir).returncode == 2


def test_time_taken_is_told(service: Service) -> None:
    taken = {item["id"]: item["took_seconds"] for item in service.get("/runs").json()["items"]}
    assert taken == {1: 10.5, 2: 3600.0, 3: 20.0, 4: 20.0, 5: 0.125, 6: None, 7: None, 8: None}


def row_ids(text: str) -> list[int]:
    return [int(number) for number in re.findall(r'id="run-(\d+)"', text)]


def test_page_shows_chosen_columns(service: Service) -> None:
    text = service.http.get("/runs?col=finished&col=notes&col=nonsense", headers=HTML).text
    headings = re.findall(r'<th scope="col"[^>]*>(?:<a[^>]*>)?([^<]+)', text)
    assert headings == ["Run", "Finished", "Notes"]
    usual = service.http.get("/runs", headers=HTML).text
    assert re.findall(r'<th scope="col"[^>]*>(?:<a[^>]*>)?([^<]+)', usual)[1:4] == ["Verdict", "State", "Kind"]
    assert "col=finished&amp;col=notes" in text  # polled rows keep the columns


def test_main_check_is_a_column(service: Service) -> None:
    title = "Gradients <equal>"
    found = Check(name="gradient_parity", title=title, passed=False, measured=0.25, limit=1e-6, unit="nats")
    with write_session(service.engine) as session:
        record_checks(session, 3, "token-parity", [found.model_copy(update={"name": "a", "passed": True}), found])
    measured = '<td class="wrap name">Gradients &lt;equal&gt;: <span class="nowrap">0.25 nats</span>'
    row = f'{measured}, <span class="nowrap">at most 1e-6</span>'
    for path in ("/runs", "/runs/rows"):
        text = shown(service.http, f"{path}?col=check&sort=oldest")
        rows = text.split('<tr id="run-')[1:]
        assert [int(part.split('"')[0]) for part in rows if row in part] == [3]
        assert row not in shown(service.http, path)


def test_page_sorts_by_its_address(service: Service) -> None:
    assert row_ids(service.http.get("/runs?sort=finished&col=finished", headers=HTML).text) == [1, 2, 4, 3, 5, 8, 7, 6]
    oldest = service.http.get("/runs?sort=oldest", headers=HTML).text
    assert row_ids(oldest) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert 'aria-sort="ascending"' in oldest
    assert row_ids(service.http.get("/runs?sort=nonsense", headers=HTML).text) == [6, 2, 8, 7, 5, 4, 3, 1]


def test_audit_log_is_paged_and_filtered(service: Service) -> None:
    with write_session(service.engine) as session:
        for number in range(5):
            action = "cancel" if number % 2 else "submit"
            session.add(AuditEntry(at=now(), actor="user", action=action, run_id=number + 1, detail=f"<b>{number}"))
    first = service.get("/audit", params={"limit": 3}).json()
    second = service.get("/audit", params={"limit": 3, "before": first["next_before"]}).json()
    assert [item["run_id"] for item in first["items"] + second["items"]] == [5, 4, 3, 2, 1]
    assert second["next_before"] is None
    cancelled = service.get("/audit", params={"action": "cancel"}).json()["items"]
    assert [item["run_id"] for item in cancelled] == [4, 2]
    assert [item["action"] for item in service.get("/audit", params={"run": 3}).json()["items"]] == ["submit"]
    text = shown(service.http, "/audit?action=cancel")
    assert "&lt;b&gt;1" in text
    assert "<b>1" not in text
    assert "&lt;b&gt;2" not in text
    assert "No matching entries" in service.http.get("/audit?run=abc", headers=HTML).text


def test_audit_log_is_the_operators(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path, token=SecretStr("operator-token"), viewer_token=SecretStr("viewer-token"), public_read=True
    )
    with running_service(settings) as service:
        viewer, operator = service.client("viewer-token"), service.client("operator-token")
        with viewer, operator:
            for path in ("/audit", "/api/v1/audit"):
                assert operator.get(path, headers=HTML).status_code == 200
                assert viewer.get(path, headers=HTML).status_code == 403
                assert (
                    service.http.get(path, headers=HTML).status_code == 403
                )  # the public can read runs, but not the audit log
            assert 'href="/audit"' in shown(operator, "/runs")
            assert 'href="/audit"' not in shown(viewer, "/runs")
