"""With JavaScript off, pages show their content and forms do their work."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Service, Tab

pytestmark = pytest.mark.browser
OFF = pytest.mark.parametrize("tab", [pytest.param({"java_script_enabled": False}, id="off")], indirect=True)


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
def test_filters_work_as_links(tab: Tab, service: Service) -> None:
    page = tab.page
    page.goto(f"{service.base}/runs")
    page.select_option("#f-verdict", "fail")
    page.get_by_role("button", name="Filter").click()
    assert "verdict=fail" in page.url
    rows = page.locator("#rows tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("fail")


@OFF
def test_order_and_columns_are_in_address(tab: Tab, service: Service) -> None:
    page = tab.page
    page.goto(f"{service.base}/runs?verdict=pass")
    page.locator("summary", has_text="Columns").click()
    page.get_by_label("Finished").check()
    page.get_by_label("Backend").uncheck()
    page.get_by_role("button", name="Show these").click()
    assert "verdict=pass" in page.url
    expect(page.locator("thead")).not_to_contain_text("Backend")
    page.get_by_role("link", name="Finished").click()
    assert "sort=finished" in page.url
    assert "verdict=pass" in page.url
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Finished")


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
