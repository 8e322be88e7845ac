"""The list in every order, page by page without a gap; its columns and order in the address; the audit log."""

import re
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from app.clock import now
from app.db import write_session
from app.runs.models import AuditEntry
from app.settings import Settings
from tests.support.pages_data import add_run
from tests.support.service import Service, running_service

HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Seven runs: the later its number, the earlier it ended; two ended at one moment, two have not ended."""
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as running:
        end = now()
        for hours in (0, 1, 2, 2, 3):
            add_run(running.engine, "succeeded", verdict="pass", finished_at=end - timedelta(hours=hours))
        add_run(running.engine, "running", moves=("starting",))
        add_run(running.engine, "queued", backend=None, device=None)
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
    [("newest", [7, 6, 5, 4, 3, 2, 1]), ("oldest", [1, 2, 3, 4, 5, 6, 7]), ("finished", [1, 2, 4, 3, 5])],
)
@pytest.mark.parametrize("limit", [1, 2, 3, 50])
def test_every_order_pages_without_gaps(service: Service, sort: str, expected: list[int], limit: int) -> None:
    assert pages(service, sort, limit) == expected


def test_cursor_of_another_order_is_refused(service: Service) -> None:
    cursors = {
        sort: service.get("/runs", params={"sort": sort, "limit": 2}).json()["next_cursor"]
        for sort in ("newest", "oldest", "finished")
    }
    for sort in cursors:
        for given, cursor in cursors.items():
            answer = service.get("/runs", params={"sort": sort, "cursor": cursor})
            assert answer.status_code == (200 if sort == given else 422), (sort, given)
    for broken in ("ZjN8bmFu", "ZjN8MWU5OTk", "ZjM", "Zg"):  # f3|nan, f3|1e999, f3, f
        assert service.get("/runs", params={"sort": "finished", "cursor": broken}).status_code == 422
    assert service.get("/runs", params={"sort": "name"}).status_code == 422


def test_orders_walk_an_index(service: Service) -> None:
    plan = (
        "EXPLAIN QUERY PLAN SELECT * FROM run WHERE deleting IS 0 AND finished_at IS NOT NULL"
        " AND (finished_at, id) < (?, ?) ORDER BY finished_at DESC, id DESC LIMIT 51"
    )
    connection = sqlite3.connect(service.settings.data_dir / "ddp-audit.db")
    told = " ".join(row[3] for row in connection.execute(plan, ("2026-01-01", 5)))
    connection.close()
    assert "ix_run_finished_at" in told
    assert "TEMP B-TREE" not in told


def row_ids(text: str) -> list[int]:
    return [int(number) for number in re.findall(r'id="run-(\d+)"', text)]


def test_page_shows_chosen_columns(service: Service) -> None:
    text = service.http.get("/runs?col=finished&col=notes&col=nonsense", headers=HTML).text
    headings = re.findall(r'<th scope="col"[^>]*>(?:<a[^>]*>)?([^<]+)', text)
    assert headings == ["Run", "Finished", "Notes"]
    usual = service.http.get("/runs", headers=HTML).text
    assert re.findall(r'<th scope="col"[^>]*>(?:<a[^>]*>)?([^<]+)', usual)[1:4] == ["Verdict", "State", "Kind"]
    assert "col=finished&amp;col=notes" in text  # the rows that are fetched again keep the columns


def test_page_sorts_by_its_address(service: Service) -> None:
    assert row_ids(service.http.get("/runs?sort=finished&col=finished", headers=HTML).text) == [1, 2, 4, 3, 5]
    oldest = service.http.get("/runs?sort=oldest", headers=HTML).text
    assert row_ids(oldest) == [1, 2, 3, 4, 5, 6, 7]
    assert 'aria-sort="ascending"' in oldest
    assert row_ids(service.http.get("/runs?sort=nonsense", headers=HTML).text) == [7, 6, 5, 4, 3, 2, 1]


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
    text = service.http.get("/audit?action=cancel", headers=HTML).text
    assert "&lt;b&gt;1" in text
    assert "<b>1" not in text
    assert "&lt;b&gt;2" not in text
    assert "No entry fits" in service.http.get("/audit?run=abc", headers=HTML).text


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
                )  # the public reads runs, not who did what
            assert 'href="/audit"' in operator.get("/runs", headers=HTML).text
            assert 'href="/audit"' not in viewer.get("/runs", headers=HTML).text
