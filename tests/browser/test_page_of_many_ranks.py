"""The page of a run with many ranks: charts are summarised by the server, also while the run is live."""

from typing import Final

import pytest
from playwright.sync_api import expect
from sqlalchemy import Engine

from app.db import write_session
from app.runs.models import RankUsage, Run
from tests.browser.conftest import Service, Tab
from tests.support.pages_data import add_events, add_metric, add_run, add_stages

pytestmark = pytest.mark.browser
RANKS: Final = 100
METRICS: Final = {"type": "metrics", "step": 3, "values": {"loss": 1.0}}


def report(engine: Engine, run_id: int, key: str) -> None:
    """Store a metric of every rank, and the event that brings it."""
    with write_session(engine) as session:
        for rank in range(RANKS):
            add_metric(session, run_id, "train", rank, [float(rank), 2.0, 3.0], key=key)
        add_events(session, run_id, "train", [METRICS])


def test_charts_of_many_ranks_follow_the_run(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = add_run(engine, "running", moves=("starting",))
    add_stages(engine, run_id, {"train": "running"})
    with write_session(engine) as session:
        session.get_one(Run, run_id).params = {"world_size": RANKS}  # as of a traced program
        session.add_all(
            RankUsage(run_id=run_id, stage="train", attempt=1, rank=rank, at=2e9 + place, cpu_seconds=place * rank / 50,
                      rss_bytes=rank << 20)
            for rank in range(RANKS)
            for place in range(3)
        )  # fmt: skip
    report(engine, run_id, "early")
    page, asked = tab.page, list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{service.base}/runs/{run_id}?rank=70#metrics")
    early, late = (page.locator("#metrics figure", has_text=name) for name in ("early", "late"))
    expect(early.locator(".keys.lines")).to_contain_text(f"highest of {RANKS}")
    expect(early.locator(".keys.lines")).to_contain_text("train rank 70")
    expect(early.locator(".key.line-key, .keys.lines button")).to_have_count(3 + 4 + 1)
    report(engine, run_id, "late")
    expect(late.locator(".keys.lines")).to_contain_text(f"median of {RANKS}")
    expect(late.locator("canvas")).to_be_visible()
    page.get_by_role("link", name="Ranks and resources").click()
    expect(page.locator("#resources canvas")).to_have_count(2)
    expect(page.locator("#resources .keys.lines").first).to_contain_text("rank 70")
    expect(page.locator("#resources")).not_to_contain_text("No samples yet", use_inner_text=True)
    assert not [url for url in asked if "/api/v1/" in url and "/metrics" in url]  # that would be every line
    assert tab.complaints == []
