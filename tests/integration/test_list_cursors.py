"""Cursors of a list identify their list: any other list refuses them and never reads them as a place there."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.clock import now
from app.db import write_session
from app.runs.models import AuditEntry
from app.runs.ordering import BY_NUMBER, Order
from app.runs.store import RunFilters
from app.settings import Settings
from tests.support.pages_data import add_run
from tests.support.service import Service, running_service

HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Four runs that ended, one of them pinned, and two that have not, with a tag and an o in their names."""
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as running:
        for number in range(4):
            add_run(running.engine, "succeeded", verdict="pass", pinned=number == 1)
        add_run(running.engine, "running", moves=("starting",), pinned=True, name="two", tags=["odd"])
        add_run(running.engine, "queued", backend=None, device=None, name="one", tags=["odd"])
        yield running


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
    """The position of a run in one list means nothing in another: continuing there would silently skip runs."""
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


def test_number_of_an_entry_is_a_place_in_every_log(service: Service) -> None:
    """Unlike a cursor its meaning is explicit: every entry with a lower number that matches the filters, new or not."""
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
        with write_session(service.engine) as session:  # between two pages a change is made
            session.add(AuditEntry(at=now(), actor="walker", action="pin", run_id=99, detail=""))
    assert walked == list(reversed(range(12)))
    newest = service.get("/audit", params={"actor": "walker", "action": "pin", "limit": 1}).json()["next_before"]
    others = service.get("/audit", params={"actor": "walker", "action": "unpin", "before": newest}).json()["items"]
    assert [item["run_id"] for item in others] == [9, 6, 3, 0]
