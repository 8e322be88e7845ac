"""The page of an active run: current activity, since when, what is next; no change moves the reader's view."""

import re

import pytest
from playwright.sync_api import expect
from sqlalchemy import Engine

from app.clock import now
from app.db import write_session
from app.runs.models import RankRow, Run, RunHistory
from tests.browser.chart_probe import a_run, falling, measure
from tests.browser.conftest import Service, Tab, shown
from tests.support.pages_data import add_run, save_result
from tests.support.results import every_panel, make_result

pytestmark = pytest.mark.browser


def finish(service: Service, engine: Engine, run_id: int) -> None:
    save_result(service.settings, run_id, make_result(panels=every_panel()))
    with write_session(engine) as session:
        run = session.get_one(Run, run_id)
        run.state, run.reason, run.verdict, run.finished_at = "succeeded", "completed", "pass", now()
        session.add(run)
        session.add(RunHistory(run_id=run_id, seq=4, at=now(), origin="running", target="succeeded", actor="test"))


def test_live_changes_keep_section_and_place(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine, "running")
    for number in range(6):
        measure(engine, run_id, 0, falling(5), key=f"m{number}")
    page = tab.page
    page.goto(f"{service.base}/runs/{run_id}#metrics")
    expect(page.locator("#metrics canvas")).to_have_count(6)
    page.evaluate("scrollTo(0, 300)")
    with write_session(engine) as session:
        rank = session.get_one(RankRow, (run_id, "distributed", 1, 1))
        rank.phase, rank.stalled = "backward", True
        session.add(rank)
    expect(page.locator("#run-verdict")).to_contain_text("backward on 1 rank")
    finish(service, engine, run_id)
    expect(page.locator("#run-announcement")).to_have_text("Verdict: pass. 3 of 3 checks passed.")
    expect(page.locator("#run-head .v-pass")).to_be_visible()
    assert (shown(page), page.evaluate("scrollY")) == (["metrics"], 300)
    page.get_by_role("link", name="Results", exact=True).click()
    expect(page.locator("#results canvas")).to_have_count(1)  # the curves that came with the result
    page.get_by_role("link", name="Overview").click()
    expect(page.locator("#run-lead figure")).to_be_visible()


def test_running_page_says_what_happens_and_what_follows(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine, "running")
    page = tab.page
    page.goto(f"{service.base}/runs/{run_id}")
    banner = page.locator("#run-verdict")
    expect(banner.locator("h2")).to_have_text("Running stage 2 of 3: Distributed")
    expect(banner).to_contain_text("14 of 20 updates done")
    assert banner.locator("progress").evaluate("(bar) => bar.value / bar.max") == 0.7
    facts = dict(zip(banner.locator("dt").all_inner_texts(), banner.locator("dd").all_inner_texts(), strict=True))
    assert facts["Ranks are in"] == "forward, step 14"
    assert re.fullmatch(r"\d+ s ago", facts["Last report"])
    assert re.fullmatch(r"\d+ s ago", facts["Stage started"])
    assert facts["Next"] == "Compare, then the verdict"
    with write_session(engine) as session:
        rank = session.get_one(RankRow, (run_id, "distributed", 1, 1))
        rank.step, rank.stalled = 15, True
        session.add(rank)
    expect(banner).to_contain_text("step 14 to 15")
    expect(banner.locator(".stalled")).to_have_text("rank 1")


def test_waiting_page_says_why_and_what_follows(tab: Tab, service: Service, engine: Engine) -> None:
    why = "1 CPU run is active and MAX_CPU_RUNS is 1"
    run_id = add_run(engine, "queued", waiting_for=why, backend=None, device=None)
    tab.page.goto(f"{service.base}/runs/{run_id}")
    banner = tab.page.locator("#run-verdict")
    expect(banner.locator("h2")).to_have_text(re.compile(r"Waiting, position \d+"))
    expect(banner).to_contain_text(why)
    expect(banner).to_contain_text("Draw corpus and plan, 4 more stages, then the verdict")
    expect(tab.page.locator("#run-stages li")).to_have_count(5)
