"""Trends in the browser: choose kind and check, see a regression at once, and open the run of a point."""

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import expect

from app.db import create_database_engine
from app.schema import migrate
from app.settings import Settings
from tests.browser.conftest import BOTH, Tab, serve
from tests.support.ended import end_run, make_result
from tests.support.keeping_data import add_trend
from trainer.contract.result import Check, Relation

pytestmark = pytest.mark.browser
USUAL = 3e-8


@pytest.fixture(scope="module")
def nightly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Fifty runs of token-parity, the last two of which fail, and one of cifar, behind a prefix."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("trends"))
    migrate(settings)
    engine = create_database_engine(settings)
    add_trend(engine, settings.runs_dir, [*[USUAL * (1 + 0.01 * step) for step in range(48)], 0.0216, "NaN"])
    read = {"measured": 400, "limit": 400, "relation": Relation.EQUAL}
    syncs = Check(name="gradient_syncs", title="Synchronisations", passed=True, **read)
    other = Check(name="micro_batches", title="Micro-batches", passed=True, **read)
    end_run(engine, settings.runs_dir, make_result(syncs, other, kind="cifar"), kind="cifar")
    engine.dispose()
    for base in serve(settings.data_dir, "--no-worker", prefix="/team"):
        yield f"{base}/team"


@BOTH
def test_regression_shows_at_once(tab: Tab, nightly: str) -> None:
    page = tab.page
    page.goto(f"{nightly}/trends")
    expect(page.locator("#reading h2")).to_contain_text("The newest, run 50, fails")
    expect(page.locator("#reading")).to_contain_text("2 runs in a row, since run 49")
    expect(page.locator("#reading")).to_contain_text("4.1 % of theirs")
    expect(page.locator("#trend-chart svg a")).to_have_count(50)
    expect(page.locator("#trend-chart .trend-fail")).to_have_count(2)
    expect(page.locator("#trend-chart .limit-line")).to_have_count(1)
    expect(page.locator("#trend-chart")).to_contain_text("logarithmic")
    expect(page.locator("#trend-chart")).to_contain_text("failed, 2 of 50")
    expect(page.locator("tr.failed")).to_have_count(2)
    expect(page.locator("tr.failed").first).to_contain_text("NaN")
    page.locator("#trend-chart svg a").nth(48).click()
    expect(page).to_have_url(f"{nightly}/runs/49")


@BOTH
def test_kind_and_check_are_chosen(tab: Tab, nightly: str) -> None:
    page = tab.page
    page.goto(f"{nightly}/trends")
    page.get_by_label("Kind").select_option("cifar")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#trend-chart h2")).to_have_text("Synchronisations")
    expect(page.locator("#reading h2")).to_contain_text("run 51, passes with the expected number")
    expect(page.locator("#trend-chart svg")).to_have_count(0)  # a single run is a row of the table
    expect(page.get_by_role("columnheader", name="Deviation")).to_be_visible()
    expect(page.locator("tbody tr").first).to_contain_text("expected 400")
    expect(page.locator("main")).not_to_contain_text("of its limit")
    page.get_by_label("Check", exact=True).select_option("micro_batches")
    page.get_by_role("button", name="Show").click()
    assert "check=micro_batches" in page.url
    expect(page.locator("#trend-chart h2")).to_have_text("Micro-batches")
    page.get_by_label("Preset").select_option("full")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("main")).to_contain_text("No run of cifar with preset full")


def test_badge_line_is_right_behind_prefix(tab: Tab, nightly: str) -> None:
    page = tab.page
    page.goto(f"{nightly}/trends")
    line = page.locator("#badge-line").inner_text()
    match = re.fullmatch(r"\[!\[token-parity\]\((\S+)\)\]\((\S+)\)", line)
    assert match is not None
    picture, target = match.groups()
    assert (picture, target) == (f"{nightly}/api/v1/badge/token-parity.svg", f"{nightly}/trends?kind=token-parity")
    answer = httpx.get(picture)
    assert answer.headers["content-type"].startswith("image/svg+xml")
    assert "fail" in answer.text
    assert httpx.get(target).status_code == 200
    assert page.evaluate("document.querySelector('#badge img').naturalWidth") > 50
