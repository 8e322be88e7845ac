"""With JavaScript off, pages show their content and forms work."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import OFF, Service, Tab

pytestmark = pytest.mark.browser


@OFF
def test_run_page_shows_everything(tab: Tab, service: Service) -> None:
    page = tab.page
    page.goto(f"{service.base}/runs/{service.runs['passed']}")
    expect(page.locator("#run-verdict")).to_contain_text("Verdict: pass")
    expect(page.locator("#checks tbody tr")).to_have_count(3)
    expect(page.locator("#panels polyline").first).to_be_visible()
    expect(page.locator("#panels rect").first).to_be_visible()
    expect(page.locator("#panels table.heat")).to_have_count(2)
    expect(page.locator("#resources .chart-box svg")).to_have_count(2)
    expect(page.locator("#resources .chart-box svg").first).to_be_visible()
    expect(page.locator("#resources polyline")).to_have_count(4)
    expect(page.locator("#log-lines")).to_contain_text("update 11 done")
    expect(page.locator("time").first).to_contain_text("UTC")
    assert page.locator("[data-copy]:visible, [data-log-find]:visible").count() == 0


@OFF
def test_delete_asks_before_it_acts(tab: Tab, service: Service) -> None:
    page = tab.page
    page.goto(f"{service.base}/runs/{service.runs['cancelled']}")
    assert not page.get_by_role("button", name="Delete run").is_visible()
    page.locator("summary", has_text="Delete…").click()
    expect(page.get_by_role("button", name="Delete run")).to_be_visible()


@OFF
def test_prediction_is_marked_by_server(tab: Tab, service: Service) -> None:
    page = tab.page
    page.goto(f"{service.base}/explain")
    assert page.locator("[data-answer]").count() == 0
    page.fill("#g-wrong", "2")
    page.fill("#g-right", "3")
    page.select_option("#g-what", "N")
    page.get_by_role("button", name="Check the prediction").click()
    answer = page.locator("[data-answer]")
    expect(answer).to_contain_text("✗ predicted 3")
    expect(answer.locator(".check-pass")).to_have_count(2)
    expect(answer).to_contain_text("1/72")
