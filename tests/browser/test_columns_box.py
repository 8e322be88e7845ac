"""Parameters and checks as columns of the list, selected in its columns menu."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine

from app.db import create_database_engine, write_session
from app.runs.outbox import record_checks
from app.schema import migrate
from app.settings import Settings
from tests.browser.conftest import BOTH, Service, Tab, serve
from tests.browser.test_every_page import serious, sideways
from tests.support.pages_data import add_run
from tests.support.results import make_result

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with one run that has a result and one that waits."""
    data_dir = tmp_path_factory.mktemp("columns")
    settings = Settings(data_dir=data_dir)
    migrate(settings)
    engine: Engine = create_database_engine(settings)
    runs = {
        "judged": add_run(engine, "succeeded", verdict="pass", reason="completed"),
        "waiting": add_run(engine, "queued", params={"learning_rate": 0.30000000000000004}),
    }
    with write_session(engine) as session:
        record_checks(session, runs["judged"], "token-parity", make_result().checks)
    engine.dispose()
    for base in serve(data_dir, "--no-worker"):
        yield Service(base=base, settings=settings, runs=runs)


def last_cell(page: Page, lab: Service, run: str) -> str:
    return page.locator(f"#run-{lab.runs[run]} td").last.inner_text()


@BOTH
def test_parameter_becomes_a_column(tab: Tab, lab: Service) -> None:
    page = tab.page
    page.goto(f"{lab.base}/runs")
    page.locator("summary", has_text="Columns").click()
    field = page.get_by_label("A parameter or a check")
    field.fill("param:learning_rate")
    field.press("Enter")
    expect(page.locator("thead")).to_contain_text("parameter learning_rate")
    assert (last_cell(page, lab, "judged"), last_cell(page, lab, "waiting")) == ("0.1", "0.30000000000000004")
    page.locator("summary", has_text="Columns").click()
    page.get_by_label("param:learning_rate").uncheck()
    field.fill("check:gradient_parity")
    page.get_by_role("group", name="Columns").get_by_role("button").click()
    expect(page.locator("thead")).to_contain_text("check gradient_parity")
    expect(page.locator("thead")).not_to_contain_text("learning_rate")
    expect(page.locator("thead")).to_contain_text("Created")
    shown = last_cell(page, lab, "judged"), last_cell(page, lab, "waiting")
    assert shown == ("2.98e-8, at most 1e-6 ✓ pass", "–")


def test_names_are_offered(tab: Tab, lab: Service) -> None:
    page = tab.page
    page.goto(f"{lab.base}/runs?col=param%3Aseed")
    offered = page.locator("#column-names option").evaluate_all("(options) => options.map((option) => option.value)")
    assert {"param:learning_rate", "check:gradient_parity"} <= set(offered)
    assert "param:seed" not in offered


def test_box_of_columns_stays_on_the_page(tab: Tab, lab: Service) -> None:
    page = tab.page
    page.goto(f"{lab.base}/runs?col=kind&col=check%3Agradient_parity_of_every_rank&col=nonsense")
    page.locator("summary", has_text="Columns").click()
    expect(page.locator("main .note")).to_contain_text("There is no column nonsense")
    assert serious(page) == []
    for width in (375, 641, 700, 900, 1100, 1280, 1600):
        page.set_viewport_size({"width": width, "height": 900})
        box = page.get_by_role("group", name="Columns").bounding_box()
        assert box is not None
        assert (sideways(page), box["x"] >= 0, box["x"] + box["width"] <= width) == (0, True, True), width
