"""The diagnosis on the run page: the cause above the first picture, the reasons below, before and after of a retry."""

from dataclasses import replace as changed

import pytest
from playwright.sync_api import expect
from sqlalchemy import Engine

from tests.browser.conftest import SHOTS, Service, Tab
from tests.browser.test_every_page import LOOKS, LOOKS_RULES, serious, sideways
from tests.support.gradients import Plan, evidence
from tests.support.pages_data import MOVES, add_run, save_result
from tests.support.planting import planted
from tests.support.results import make_result
from trainer.contract.diagnosis import Diagnosis
from trainer.contract.result import HeatPanel
from trainer.contract.weights import WEIGHTS_TITLE, weights_panel
from trainer.forensics.diagnose import diagnose

pytestmark = pytest.mark.browser


def found(*names: str, plan: Plan | None = None) -> Diagnosis:
    return diagnose(evidence([planted(names, plan or Plan())]))


def add(service: Service, engine: Engine, diagnosis: Diagnosis, *, retry_of: int | None = None) -> int:
    right = diagnosis.status == "clean"
    run_id = add_run(
        engine, "succeeded", verdict="pass" if right else "fail", reason="completed", moves=MOVES, retry_of=retry_of
    )
    panel = weights_panel(diagnosis, unit="token")
    assert isinstance(panel, HeatPanel)
    made = make_result(error=1e-9 if right else 0.02, panels=[panel])
    save_result(service.settings, run_id, made.model_copy(update={"diagnosis": diagnosis, "headline": WEIGHTS_TITLE}))
    return run_id


@pytest.fixture(scope="module")
def pair(service: Service, engine: Engine) -> tuple[int, int]:
    """A run with a mean of means, and its retry after the mend."""
    broken = add(service, engine, found("mean_of_means"))
    return broken, add(service, engine, found(), retry_of=broken)


@pytest.mark.parametrize("tab", LOOKS, indirect=True)
def test_diagnosis_is_sound_in_every_look(
    tab: Tab, service: Service, pair: tuple[int, int], request: pytest.FixtureRequest
) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    for name, run_id in zip(("broken", "mended"), pair, strict=True):
        tab.page.goto(f"{service.base}/runs/{run_id}")
        expect(tab.page.get_by_role("region", name="Diagnosis")).to_be_visible()
        assert sideways(tab.page) <= 0
        assert serious(tab.page, LOOKS_RULES) == []
        tab.page.screenshot(path=SHOTS / f"diagnosis-{name}-{request.node.callspec.id}.png", full_page=True)


def test_cause_is_above_the_picture_and_reasons_below(tab: Tab, service: Service, pair: tuple[int, int]) -> None:
    page = tab.page
    page.goto(f"{service.base}/runs/{pair[0]}")
    answer = page.get_by_role("region", name="Diagnosis")
    expect(answer).to_contain_text("Cause: mean of means")
    expect(answer).to_contain_text("weigh 8.0 times those of micro-batch 1 of rank 1")
    expect(answer).to_contain_text("What to change: Add the losses up")
    heat = page.locator("#overview figure.panel").first
    expect(heat).to_contain_text(WEIGHTS_TITLE)
    expect(heat.locator("td.odd")).to_have_count(6)
    reasons = page.get_by_role("region", name="Line of thinking")
    expect(reasons).to_contain_text("A missing reduction")
    tops = [box["y"] for box in (one.bounding_box() for one in (answer, heat, reasons)) if box]
    assert len(tops) == 3
    assert tops == sorted(tops)
    expect(page.get_by_role("region", name="Before and after")).to_have_count(0)


def test_retry_shows_before_and_after(tab: Tab, service: Service, pair: tuple[int, int]) -> None:
    page = tab.page
    page.goto(f"{service.base}/runs/{pair[1]}")
    both = page.get_by_role("region", name="Before and after")
    expect(both).to_contain_text(f"Before: run {pair[0]}, fail")
    expect(both).to_contain_text(f"After: run {pair[1]}, pass")
    expect(both).to_contain_text("Cause: mean of means")
    expect(both).to_contain_text("The gradients are right")
    tables = both.locator("table.heat")
    expect(tables).to_have_count(2)
    expect(tables.nth(0).locator("td.odd")).to_have_count(6)
    expect(tables.nth(1).locator("td.odd")).to_have_count(0)
    both.get_by_role("link", name=f"run {pair[0]}").click()
    expect(page).to_have_url(f"{service.base}/runs/{pair[0]}")


def test_ambiguous_and_unexplained_say_so(tab: Tab, service: Service, engine: Engine) -> None:
    square = Plan(units=((3, 5), (7, 2)), padding=((0, 0), (0, 0)))
    odd = changed(Plan(), factor=lambda _plan, rank, place: 0.013 * (rank + 2 * place + 1))
    cases = {
        "Several mistakes explain": (found("missing_world_size", plan=square), "Run with 3 micro-batches per rank."),
        "No known mistake explains": (diagnose(evidence([odd])), "Compare the observed weights"),
    }
    for title, (diagnosis, suggestion) in cases.items():
        tab.page.goto(f"{service.base}/runs/{add(service, engine, diagnosis)}")
        answer = tab.page.get_by_role("region", name="Diagnosis")
        expect(answer).to_contain_text(title)
        expect(answer).to_contain_text(suggestion)
