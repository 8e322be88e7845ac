"""A timeline on the page of a run: drawn to time, narrow on a phone, and readable as a table."""

import pytest
from playwright.sync_api import expect
from sqlalchemy import Engine

from tests.browser.conftest import BOTH, Service, Tab
from tests.support.pages_data import add_run, save_result
from tests.support.results import make_result, timeline_panel

pytestmark = pytest.mark.browser


@BOTH
def test_timeline_is_drawn_for_each_width_and_has_its_times(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = add_run(engine, "succeeded", verdict="pass", reason="completed", moves=("starting", "running"))
    save_result(service.settings, run_id, make_result(panels=[timeline_panel()]))
    page = tab.page
    page.goto(f"{service.base}/runs/{run_id}")
    figure = page.locator("figure", has=page.get_by_role("heading", name="First windows"))
    expect(figure.locator(".key")).to_have_text(["forward", "backward", "sync", "step"])
    for width, shown, hidden in ((1280, "on-wide", "on-narrow"), (390, "on-narrow", "on-wide")):
        page.set_viewport_size({"width": width, "height": 900})
        expect(figure.locator(f"svg.{shown}")).to_be_visible()
        expect(figure.locator(f"svg.{hidden}")).to_be_hidden()
        expect(figure.locator(f"svg.{shown} rect")).to_have_count(8)
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    figure.get_by_text("Times", exact=True).click()
    expect(figure.locator("tbody tr").first).to_contain_text("forward micro-batch 1")
    expect(figure.locator("tbody tr")).to_have_count(8)
    assert tab.complaints == []
