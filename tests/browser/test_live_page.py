"""The run page follows a run without reloading, and a reader that reconnects misses and repeats nothing."""

import re

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine
from sqlmodel import Session

from app.clock import now
from app.db import write_session
from app.runs.models import RankRow, Run, RunHistory, StageAttempt
from tests.browser.conftest import Held, Service, Tab
from tests.support.pages_data import (
    HOSTILE,
    add_events,
    add_metric,
    add_run,
    add_stages,
    add_usage,
    save_result,
    write_log,
)
from tests.support.results import make_result
from tests.support.waiting import until
from trainer.contract.paths import RunPaths

pytestmark = pytest.mark.browser
STAGES = {"prepare": "succeeded", "distributed": "running", "compare": "queued"}
AWAY = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => %s})"
CHANGED = "document.dispatchEvent(new Event('visibilitychange'))"


def say(engine: Engine, run_id: int, text: str) -> None:
    with write_session(engine) as session:
        add_events(session, run_id, "distributed", [{"type": "message", "level": "info", "text": text}])


def lines(page: Page) -> list[str]:
    return page.locator("#log-lines .log-text").all_text_contents()


def finish(session: Session, run_id: int) -> None:
    run = session.get(Run, run_id)
    assert run is not None
    run.state, run.reason, run.verdict, run.finished_at = "succeeded", "completed", "pass", now()
    stage = session.get(StageAttempt, (run_id, "distributed", 1))
    assert stage is not None
    stage.state, stage.finished_at = "succeeded", now()
    session.add_all([run, stage])
    session.add(RunHistory(run_id=run_id, seq=4, at=now(), origin="running", target="succeeded", actor="test"))


def test_page_follows_run_to_verdict(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = add_run(engine, "running", moves=("starting",))
    add_stages(engine, run_id, STAGES)
    say(engine, run_id, "before the page")
    page = tab.page
    page.goto(f"{service.base}/runs/{run_id}")
    page.evaluate("window.sameDocument = true")
    expect(page.locator("#run-verdict")).to_contain_text("No verdict yet")
    expect(page).to_have_title(f"Run {run_id}: running · ddp-audit")
    with write_session(engine) as session:
        rank = session.get(RankRow, (run_id, "distributed", 1, 1))
        assert rank is not None
        rank.phase, rank.step, rank.stalled = "backward", 15, True
        session.add(rank)
        add_events(session, run_id, "distributed", [{"type": "message", "level": "info", "text": HOSTILE}])
        add_metric(session, run_id, "distributed", 0, [3.0, 2.0, 1.0])
        add_events(session, run_id, "distributed", [{"type": "metrics", "step": 2, "values": {"loss": 1.0}}])
    expect(page.locator("#log-lines")).to_contain_text(HOSTILE)  # only now: output has its own file
    write_log(service.settings, run_id, "distributed", 0, "whole line\nhalf a l")
    expect(page.locator("#run-ranks")).to_contain_text("stalled")
    expect(page.locator("#log-lines")).to_contain_text("whole line")
    page.get_by_role("link", name="Metrics").click()
    expect(page.locator("#metrics canvas")).to_have_count(1)
    assert "half a l" not in lines(page)
    write_log(service.settings, run_id, "distributed", 0, "ine\n")
    expect(page.locator("#log-lines")).to_contain_text("half a line")
    expect(page.locator("#files")).to_contain_text("No further files.")
    expect(page.locator("#files")).not_to_contain_text("JUnit")
    save_result(service.settings, run_id, make_result())
    RunPaths(service.settings.runs_dir / str(run_id)).artifacts.joinpath("told.json").write_text('{"epoch": 7}')
    with write_session(engine) as session:
        finish(session, run_id)
    expect(page.locator("#run-verdict")).to_contain_text("Verdict: pass")
    expect(page).to_have_title(f"Run {run_id}: pass · ddp-audit")
    expect(page.locator("#files")).to_contain_text("Checks as JUnit XML")
    page.get_by_role("link", name="Files and export").click()
    page.locator("#files summary", has_text="told.json").click()
    expect(page.locator("#files .file", has_text='"epoch": 7')).to_be_visible()
    page.get_by_role("link", name="Log", exact=True).click()
    page.locator("#run-outputs summary").click()
    expect(page.locator("#run-outputs a").first).to_be_visible()
    expect(page.locator("#run-verdict")).to_contain_text("3 of 3 checks passed")
    expect(page.locator("#run-deciding")).to_contain_text(re.compile(r"measured\s*2.98e-8\s*at most\s*1e-6"))
    expect(page.locator("#checks")).to_contain_text("negative_control")
    assert page.evaluate("window.sameDocument") is True
    assert lines(page) == ["before the page", HOSTILE, "whole line", "half a line"]
    assert page.locator("#log-lines img").count() == 0
    page.reload()
    assert sorted(lines(page)) == sorted(["before the page", HOSTILE, "whole line", "half a line"])


def test_open_question_outlives_an_update(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = add_run(engine, "queued")
    page = tab.page
    page.goto(f"{service.base}/runs/{run_id}")
    page.locator("summary", has_text="Cancel…").click()
    with write_session(engine) as session:
        run = session.get_one(Run, run_id)
        run.state, run.started_at = "starting", now()
        session.add(run)
        session.add(RunHistory(run_id=run_id, seq=2, at=now(), origin="queued", target="starting", actor="test"))
    expect(page.locator("#run-head")).to_contain_text("starting")
    page.get_by_role("button", name=f"Cancel run {run_id}").click()
    expect(page.locator("#run-head")).to_contain_text("stopping")


def test_page_follows_what_ranks_use(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = add_run(engine, "running", moves=("starting",))
    add_stages(engine, run_id, STAGES)
    page = tab.page
    page.goto(f"{service.base}/runs/{run_id}#ranks")
    expect(page.locator("#resources")).to_contain_text("No samples yet")
    add_usage(engine, run_id, "prepare")
    expect(page.locator("#resources canvas")).to_have_count(2)
    expect(page.locator("#resources")).not_to_contain_text("No samples yet", use_inner_text=True)
    page.evaluate("document.querySelector('#resources canvas').dataset.seen = '1'")
    add_usage(engine, run_id, "distributed", begin=30)
    expect(page.locator("#resources figure").first.locator(".keys.lines")).to_contain_text("rank 1")
    with page.expect_response(lambda answer: answer.url.endswith(f"/runs/{run_id}/resources")) as told:
        pass
    assert told.value.status == 200
    assert page.locator("#resources canvas[data-seen]").count() == 1  # the drawing continues and keeps its zoom
    with write_session(engine) as session:
        finish(session, run_id)
    with page.expect_response(lambda answer: answer.status == 286):
        pass


def test_reader_who_was_away_misses_nothing(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = add_run(engine, "running", moves=("starting",))
    add_stages(engine, run_id, STAGES)
    page = tab.page
    streams: list[str] = []
    page.clock.install()
    page.on("request", lambda request: streams.append(request.url) if "/live" in request.url else None)
    page.goto(f"{service.base}/runs/{run_id}")
    say(engine, run_id, "seen")
    expect(page.locator("#log-lines")).to_contain_text("seen")
    page.evaluate(AWAY % "true")
    with page.expect_event("requestfailed", lambda request: "/live" in request.url):  # the stream is closed
        page.evaluate(CHANGED)
    for number in range(5):
        say(engine, run_id, f"missed {number}")
    write_log(service.settings, run_id, "distributed", 1, "printed meanwhile\n", stream="stderr")
    assert lines(page) == ["seen"]
    page.evaluate(AWAY % "false")
    page.evaluate(CHANGED)
    expect(page.locator("#log-lines")).to_contain_text("printed meanwhile")
    say(engine, run_id, "after")
    expect(page.locator("#log-lines")).to_contain_text("after")
    assert lines(page) == ["seen", *(f"missed {number}" for number in range(5)), "printed meanwhile", "after"]
    with write_session(engine) as session:
        finish(session, run_id)
    expect(page.locator("#run-head")).to_contain_text("succeeded")
    page.clock.run_for(60_000)
    page.evaluate("fetch('/healthz').then((answer) => answer.status)")  # earlier requests have been answered by now
    assert len(streams) == 2  # the stream was closed by `end`, not opened again


def test_log_can_be_narrowed(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = add_run(engine, "running", moves=("starting",))
    add_stages(engine, run_id, STAGES)
    say(engine, run_id, "a message")
    for rank in range(2):
        write_log(service.settings, run_id, "distributed", rank, f"out of {rank}\n")
        write_log(service.settings, run_id, "distributed", rank, f"err of {rank}\n", stream="stderr")
    page = tab.page
    page.goto(f"{service.base}/runs/{run_id}?rank=1&stream=stderr#log")
    assert lines(page) == ["err of 1"]
    write_log(service.settings, run_id, "distributed", 0, "not shown\n", stream="stderr")
    write_log(service.settings, run_id, "distributed", 1, "shown\n", stream="stderr")
    expect(page.locator("#log-lines")).to_contain_text("shown")
    assert lines(page) == ["err of 1", "shown"]
    page.fill("[data-log-find]", "SHOWN")
    expect(page.locator("#log-lines .log-line:visible")).to_have_count(1)


def test_late_extension_still_connects(service: Service, tab: Tab, engine: Engine) -> None:
    run_id = add_run(engine, "running", moves=("starting",))
    add_stages(engine, run_id, STAGES)

    held = Held(tab.page, "**/hx-sse.min.js*")
    tab.page.goto(f"{service.base}/runs/{run_id}", wait_until="commit")
    until(lambda: tab.page.evaluate("window.htmx !== undefined") and held.routes, "htmx alone")
    tab.page.evaluate("new Promise((done) => setTimeout(done, 0))")
    with tab.page.expect_request(f"**/runs/{run_id}/live*"):
        held.let_go()
    with write_session(engine) as session:
        finish(session, run_id)
