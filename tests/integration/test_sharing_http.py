"""Sharing and automation over the API: JUnit, the self-contained page, badges, trends, retention."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from sqlalchemy import Engine, event
from sqlmodel import select

from app.clock import now
from app.db import read_session, write_session
from app.runs import queue
from app.runs.models import AuditEntry
from app.runs.outbox import record_checks
from app.runs.results.compare import ComparedCheck, Comparison
from app.runs.results.trends import Trend, TrendItem, fill_checks
from app.runs.states import Reason, State
from app.settings import Settings
from tests.support.ended import end_run, make_result
from tests.support.service import Service, running_service, shown
from trainer.contract.result import Check, ImageItem, ImagesPanel, Line, Panel, Relation, SeriesPanel

API = "/api/v1"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path / "data")) as made:
        yield made


@pytest.fixture
def settings(service: Service) -> Settings:
    return service.settings


@pytest.fixture
def client(service: Service) -> httpx.Client:
    return service.http


@pytest.fixture
def engine(service: Service) -> Engine:
    return service.engine


def check(
    name: str, passed: bool | None, measured: float | str | None = 1.0, limit: float | None = 2.0, **read: Any
) -> Check:
    return Check(name=name, title=f"Title of {name}", passed=passed, measured=measured, limit=limit, **read)


def queued(engine: Engine) -> int:
    with write_session(engine) as session:
        return queue.number_of(queue.insert_run(session, kind="cifar", params={}))


def suite(answer: httpx.Response) -> ET.Element:
    assert answer.status_code == 200, answer.text
    found = ET.fromstring(answer.content).find("testsuite")
    assert found is not None
    return found


def outcomes(found: ET.Element) -> dict[str, str]:
    words = {}
    for case in found.findall("testcase"):
        words[case.attrib["name"]] = next((child.tag for child in case if child.tag != "system-out"), "passed")
    return words


def test_junit_tells_every_outcome(client: httpx.Client, engine: Engine, settings: Settings) -> None:
    result = make_result(check("good", True), check("bad", False, 3.0), check("open", None, None))
    run_id = end_run(engine, settings.runs_dir, result, name="<&> \x07")
    found = suite(client.get(f"{API}/runs/{run_id}/junit"))
    assert outcomes(found) == {"good": "passed", "bad": "failure", "open": "error"}
    assert (found.attrib["tests"], found.attrib["failures"], found.attrib["errors"]) == ("3", "1", "1")
    good, bad, unjudged = found.findall("testcase")
    assert "measured 1.0, must be at most 2.0" in str(good[0].text)
    assert bad[0].attrib["message"] == "Title of bad: measured 3.0, must be at most 2.0"
    assert unjudged[0].text == "Title of open\nnot measured, must be at most 2.0"


def test_junit_says_what_is_required(client: httpx.Client, engine: Engine, settings: Settings) -> None:
    result = make_result(
        check("count", False, 21, limit=18, relation=Relation.EQUAL),
        check("control", True, 0.5, limit=1e-6, relation=Relation.AT_LEAST, strict=True),
        check("old", True, 0.5, limit=1e-6),
    )
    run_id = end_run(engine, settings.runs_dir, result)
    texts = [str(case[0].text).splitlines()[1] for case in suite(client.get(f"{API}/runs/{run_id}/junit"))[1:]]
    assert texts == ["measured 21, expected 18", "measured 0.5, must exceed 1e-06", "measured 0.5, limit 1e-06"]


def test_junit_of_failed_run_is_red(client: httpx.Client, engine: Engine, settings: Settings) -> None:
    run_id = end_run(engine, settings.runs_dir, state=State.FAILED, reason=Reason.RANK_EXIT)
    found = suite(client.get(f"{API}/runs/{run_id}/junit"))
    assert outcomes(found) == {"run": "error"}
    assert found.attrib["errors"] == "1"


def test_unfinished_run_has_no_report(client: httpx.Client, engine: Engine) -> None:
    run_id = queued(engine)
    for what in ("junit", "page"):
        answer = client.get(f"{API}/runs/{run_id}/{what}")
        assert (answer.status_code, answer.json()["code"]) == (409, "not_final")
        assert client.get(f"{API}/runs/999/{what}").status_code == 404


def test_page_stands_alone(client: httpx.Client, engine: Engine, settings: Settings) -> None:
    panels: list[Panel] = [
        SeriesPanel(title="Loss over updates", x=[1, 2, 3, 4], lines=[Line(name="rank 0", y=[3.0, 2.0, "NaN", 1.0])]),
        ImagesPanel(
            title="A picture",
            items=[ImageItem(path="cat.png", caption="a cat"), ImageItem(path="../../secret", caption="x")],
        ),
    ]
    result = make_result(check("good", True), panels=panels)
    run_id = end_run(engine, settings.runs_dir, result, name="<script>alert(1)</script>")
    Image.new("RGB", (4, 4), "red").save(settings.runs_dir / str(run_id) / "artifacts" / "cat.png")
    answer = client.get(f"{API}/runs/{run_id}/page")
    assert answer.status_code == 200
    assert answer.headers["content-disposition"] == f'attachment; filename="run-{run_id}.html"'
    assert "sandbox" in answer.headers["content-security-policy"]
    text = answer.text
    addresses = re.findall(r"""(?:src|href|action|srcset|data)\s*=\s*["']?([^"'\s>]+)""", text)
    inside = {address for address in addresses if address.startswith("#")}
    assert {address.split(",")[0][:10] for address in set(addresses) - inside} == {"data:", "data:image"}
    assert inside
    assert all(f'id="{address[1:]}"' in text for address in inside)
    assert not re.search(r"<script|url\((?!data:)|@import|https?://(?!www\.w3\.org)", text)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "data:image/png;base64," in text
    for word in ("Verdict: pass", "Title of good", "Loss over updates", "<polyline", "says nothing about other models"):
        assert word in text
    assert "NCCL was not validated" in text


def test_page_of_failed_run_explains(client: httpx.Client, engine: Engine, settings: Settings) -> None:
    run_id = end_run(engine, settings.runs_dir, state=State.FAILED, reason=Reason.RANK_SIGNAL)
    assert "Failed: rank signal" in client.get(f"{API}/runs/{run_id}/page").text


def test_badge_follows_newest_verdict(client: httpx.Client, engine: Engine, settings: Settings) -> None:
    address = f"{API}/badge/token-parity.svg"
    assert "no verdict" in client.get(address).text
    end_run(engine, settings.runs_dir)
    answer = client.get(address)
    assert answer.headers["content-type"] == "image/svg+xml"
    assert ET.fromstring(answer.text).attrib["aria-label"] == "token-parity: pass"
    end_run(engine, settings.runs_dir, make_result(check("bad", False)))
    end_run(engine, settings.runs_dir, state=State.FAILED, reason=Reason.RANK_EXIT)  # judges nothing
    assert ET.fromstring(client.get(address).text).attrib["aria-label"] == "token-parity: fail"
    assert "no verdict" in client.get(f"{API}/badge/cifar.svg").text
    assert client.get(f"{API}/badge/no-kind.svg").status_code == 404


def test_trend_shows_a_regression(client: httpx.Client, engine: Engine, settings: Settings) -> None:
    for measured in (0.1, 0.2, 1.9):
        end_run(engine, settings.runs_dir, make_result(check("parity", True, measured)))
    end_run(engine, settings.runs_dir, make_result(check("parity", False, "NaN")))
    end_run(engine, settings.runs_dir, make_result(check("other", True)))
    document = client.get(f"{API}/trends", params={"kind": "token-parity", "check": "parity"}).json()
    assert [item["run_id"] for item in document["items"]] == [1, 2, 3, 4]
    assert [item["margin"] for item in document["items"]] == [0.05, 0.1, 0.95, None]
    assert [item["measured"] for item in document["items"]] == [0.1, 0.2, 1.9, "NaN"]
    assert [item["passed"] for item in document["items"]] == [True, True, True, False]
    newest = client.get(f"{API}/trends", params={"kind": "token-parity", "check": "parity", "limit": 2}).json()
    assert [item["run_id"] for item in newest["items"]] == [3, 4]
    listed = client.get(f"{API}/trends", params={"kind": "token-parity"}).json()["checks"]
    assert [(item["check"], item["runs"]) for item in listed] == [("other", 1), ("parity", 4)]


def test_trend_says_how_to_read(client: httpx.Client, engine: Engine, settings: Settings) -> None:
    for measured in (18, 21):
        counted = check("syncs", measured == 18, measured, limit=18, relation=Relation.EQUAL)
        end_run(engine, settings.runs_dir, make_result(counted, check("old", True, 0.5, limit=1e-6)))
    document = client.get(f"{API}/trends", params={"kind": "token-parity", "check": "syncs"}).json()
    assert (document["relation"], document["strict"]) == ("equal", False)
    assert [(item["relation"], item["margin"], item["difference"]) for item in document["items"]] == [
        ("equal", None, 0),
        ("equal", None, 3),
    ]
    assert document.keys() == Trend.model_fields.keys()
    assert all(item.keys() == TrendItem.model_fields.keys() for item in document["items"])
    compared = client.get(f"{API}/compare", params={"ids": "1,2"}).json()
    assert compared.keys() == Comparison.model_fields.keys()
    syncs = next(row for row in compared["checks"] if row["name"] == "syncs")
    assert [value["relation"] for value in syncs["values"]] == ["equal", "equal"]
    assert syncs["values"][0].keys() == ComparedCheck.model_fields.keys()
    page = shown(client, "/trends?kind=token-parity&check=syncs")
    assert "fails, 3 more than expected" in page
    assert "expected 18" in page
    assert "of its limit" not in page
    old = client.get(f"{API}/trends", params={"kind": "token-parity", "check": "old"}).json()
    assert [(item["relation"], item["margin"]) for item in old["items"]] == [("at_most", None)] * 2
    page = shown(client, "/trends?kind=token-parity&check=old")
    assert "limit 1e-6" in page
    assert "500,000 times" not in page


def test_other_reading_is_no_difference(client: httpx.Client, engine: Engine, settings: Settings) -> None:
    # Recorded by two versions: numbers belong to the run, their interpretation to the kind.
    end_run(engine, settings.runs_dir, make_result(check("same", True, 18, limit=18), check("other", True, 1.5)))
    now_read = check("same", True, 18, limit=18, relation=Relation.EQUAL)
    end_run(engine, settings.runs_dir, make_result(now_read, check("other", True, 1.6)))
    rows = client.get(f"{API}/compare", params={"ids": "1,2"}).json()["checks"]
    assert {row["name"]: row["differs"] for row in rows} == {"same": False, "other": True}
    assert [value["relation"] for value in rows[0]["values"]] == ["at_most", "equal"]


def test_unknown_trend_says_what_there_is(client: httpx.Client, engine: Engine, settings: Settings) -> None:
    end_run(engine, settings.runs_dir, make_result(check("parity", True)))
    answer = client.get(f"{API}/trends", params={"kind": "token-parity", "check": "no"})
    assert answer.status_code == 404
    assert "parity" in answer.json()["detail"]
    assert client.get(f"{API}/trends", params={"kind": "no", "check": "parity"}).status_code == 422
    for query in ({"kind": "nothing"}, {"kind": "nothing", "check": "parity"}):
        answer = client.get(f"{API}/trends", params=query)
        assert (answer.status_code, answer.json()["code"]) == (422, "unknown_kind")


def test_results_are_read_once(client: httpx.Client, engine: Engine, settings: Settings) -> None:
    run_id = end_run(engine, settings.runs_dir)
    broken = end_run(engine, settings.runs_dir)
    (settings.runs_dir / str(broken) / "result.json").write_text("{")
    assert fill_checks(engine, settings.runs_dir, most=1) == 1
    assert fill_checks(engine, settings.runs_dir) == 1
    assert fill_checks(engine, settings.runs_dir) == 0
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    (settings.runs_dir / str(run_id) / "result.json").unlink()
    found = client.get(f"{API}/trends", params={"kind": "token-parity", "check": "gradient_parity"}).json()
    assert [item["run_id"] for item in found["items"]] == [run_id]
    assert not [text for text in statements if text.startswith("INSERT")]


def test_recorded_checks_replace_older(engine: Engine, settings: Settings) -> None:
    run_id = end_run(engine, settings.runs_dir)
    for names in (("a", "b"), ("b",)):
        with write_session(engine) as session:
            record_checks(session, run_id, "token-parity", [check(name, True) for name in names])
    with read_session(engine) as session:
        assert session.connection().exec_driver_sql("SELECT name FROM run_check").fetchall() == [("b",)]


def test_retention_plans_then_removes(client: httpx.Client, engine: Engine, settings: Settings) -> None:
    old = end_run(engine, settings.runs_dir, finished_at=now() - timedelta(days=31))
    young = end_run(engine, settings.runs_dir)
    planned = client.get(f"{API}/retention", params={"max_age_days": 30}).json()
    assert [item["id"] for item in planned["remove"]] == [old]
    assert client.get(f"{API}/runs/{old}").status_code == 200
    wrong = client.post(f"{API}/retention", json={"max_age_days": 30, "plan": "0" * 16})
    assert (wrong.status_code, wrong.json()["code"]) == (409, "plan_changed")
    done = client.post(f"{API}/retention", json={"max_age_days": 30, "plan": planned["plan"]})
    assert done.json()["removed"] == [old]
    assert client.get(f"{API}/runs/{old}").status_code == 404
    assert client.get(f"{API}/runs/{young}").status_code == 200
    with read_session(engine) as session:
        assert [entry.action for entry in session.exec(select(AuditEntry))] == ["delete"]


@pytest.mark.parametrize(
    "query", ["", "max_runs=-1", "max_age_days=nan", "max_age_days=inf", "kind=no&max_runs=1", "more=1"]
)
def test_senseless_retention_is_refused(client: httpx.Client, query: str) -> None:
    assert client.get(f"{API}/retention?{query}").status_code == 422


def test_usage_over_http(client: httpx.Client, engine: Engine, settings: Settings) -> None:
    run_id = end_run(engine, settings.runs_dir, payload=b"x" * 1000)
    document = client.get(f"{API}/usage").json()
    assert document["items"][0]["id"] == run_id
    assert document["items"][0]["bytes"] > 1000


def test_deliveries_are_listed(client: httpx.Client, engine: Engine, settings: Settings) -> None:
    run_id = end_run(engine, settings.runs_dir)
    items = client.get(f"{API}/webhooks/deliveries", params={"run_id": run_id}).json()["items"]
    assert [item["run_id"] for item in items] == [run_id]
    assert client.get(f"{API}/webhooks/deliveries", params={"run_id": 99}).status_code == 404
    again = client.post(f"{API}/webhooks/deliveries/{items[0]['id']}/redeliver")
    assert (again.status_code, again.json()["status"]) == (202, "pending")
    assert client.post(f"{API}/webhooks/deliveries/99/redeliver").status_code == 404
