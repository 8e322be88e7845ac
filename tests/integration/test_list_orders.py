"""The list in every order, page by page without a gap; its columns and order in the address; the audit log."""

import base64
import json
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
from app.runs.ordering import BY_NUMBER, Order, parts, read_cursor, sorted_by
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


def given_cursor(service: Service, **params: Any) -> str:
    cursor = service.get("/runs", params={"limit": 1, **params}).json()["next_cursor"]
    assert isinstance(cursor, str)
    return cursor


def test_cursor_of_another_order_is_refused(service: Service) -> None:
    cursors = {order: given_cursor(service, sort=order.value) for order in Order}
    for order in cursors:
        for given, cursor in cursors.items():
            answer = service.get("/runs", params={"sort": order.value, "cursor": cursor})
            assert answer.status_code == (200 if order == given else 422), (order, given)
            if order != given:
                (error,) = answer.json()["errors"]
                assert error["field"] == "cursor"
                assert f"sorted by {given}, not by {order}" in error["message"]
    assert service.get("/runs", params={"sort": "name"}).status_code == 422


FILTERS: list[dict[str, Any]] = [
    {},
    {"state": "succeeded"},
    {"state": ["succeeded", "running"]},
    {"kind": "token-parity"},
    {"verdict": "pass"},
    {"tag": "odd"},
    {"pinned": True},
    {"pinned": False},
    {"q": "o"},
]


@pytest.mark.parametrize("sort", list(Order))
def test_cursor_of_other_filters_is_refused(service: Service, sort: Order) -> None:
    """The place of a run in one list says nothing about another: going on there would leave out runs in silence."""
    given = [given_cursor(service, sort=sort.value, **params) for params in FILTERS]
    for mine, cursor in enumerate(given):
        for other, params in enumerate(FILTERS):
            answer = service.get("/runs", params={"sort": sort.value, "cursor": cursor, **params})
            assert answer.status_code == (200 if mine == other else 422), (FILTERS[mine], params)
            assert mine == other or "with other filters" in answer.json()["errors"][0]["message"]


def test_cursor_knows_the_same_filters_written_otherwise(service: Service) -> None:
    cursor = given_cursor(service, state=["queued", "running"], q="o")
    for states in (["queued", "running"], ["running", "queued", "running"]):
        asked = {"cursor": cursor, "state": states, "q": " o ", "sort": "newest"}
        assert service.get("/runs", params=asked).status_code == 200
        assert service.http.get("/runs", params=asked, headers=HTML).status_code == 200  # page and API are alike
    refused = service.http.get("/runs", params={"cursor": cursor, "sort": "newest"}, headers=HTML)
    assert refused.status_code == 422
    assert "belongs to a list with other filters" in refused.text


@pytest.mark.parametrize("sort", list(Order))
def test_made_up_cursor_is_refused(service: Service, sort: Order) -> None:
    owner = RunFilters().digest()
    numbers: list[Any] = [0, -1, 2**63, 1.5, True, None, "1", []]
    values: list[Any] = [] if sort in BY_NUMBER else ["1", [], {}]
    owners: list[Any] = [None, 1, [], f"{owner}0", ""]
    orders: list[Any] = [None, 1, [], {}, "name"]
    fields: list[Any] = [
        *([sort, owner, number, 1.0] for number in numbers),
        *([sort, owner, 1, value] for value in values),
        *([sort, of, 1, 1.0] for of in owners),
        *([given, owner, 1, 1.0] for given in orders),
        *([], [sort, owner, 1], [sort, owner, 1, 1.0, 1.0], {"a": 1}, 7, None),
    ]
    if sort is Order.FINISHED:
        fields += [[sort, owner, 1, value] for value in (1e300, 10**30)]
    texts = [base64.urlsafe_b64encode(json.dumps(item).encode()).decode() for item in fields]
    for broken in (*texts, "x", "\u00e4", "WyJuZXdlc3Qi", "ZjN8bmFu", "=", "a" * 200):
        answer = service.get("/runs", params={"sort": sort.value, "cursor": broken})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "cursor"), broken


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
    """Return what SQLite says it would do."""
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
    assert "col=finished&amp;col=notes" in text  # the rows that are fetched again keep the columns


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
    assert "No entry fits" in service.http.get("/audit?run=abc", headers=HTML).text


def test_number_of_an_entry_is_a_place_in_every_log(service: Service) -> None:
    """Unlike a cursor it says what it means: every entry with a lower number that fits the filters, new ones or not."""
    with write_session(service.engine) as session:
        for number in range(12):
            action = "pin" if number % 3 else "unpin"
            session.add(AuditEntry(at=now(), actor="walker", action=action, run_id=number, detail=""))
    walked: list[int] = []
    before = None
    while True:
        page = service.get("/audit", params={"actor": "walker", "limit": 5} | ({"before": before} if before else {}))
        walked += [item["run_id"] for item in page.json()["items"]]
        before = page.json()["next_before"]
        if before is None:
            break
        with write_session(service.engine) as session:  # between two pages something happens
            session.add(AuditEntry(at=now(), actor="walker", action="pin", run_id=99, detail=""))
    assert walked == list(reversed(range(12)))
    newest = service.get("/audit", params={"actor": "walker", "action": "pin", "limit": 1}).json()["next_before"]
    others = service.get("/audit", params={"actor": "walker", "action": "unpin", "before": newest}).json()["items"]
    assert [item["run_id"] for item in others] == [9, 6, 3, 0]


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
            assert 'href="/audit"' in shown(operator, "/runs")
            assert 'href="/audit"' not in shown(viewer, "/runs")
