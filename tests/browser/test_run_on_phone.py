"""The run page on a phone: tables become blocks with every value visible, and nothing scrolls sideways."""

import pytest
from playwright.sync_api import expect
from sqlalchemy import Engine

from tests.browser.conftest import SECTIONS, Service, Tab
from tests.support.pages_data import add_run, add_stages

pytestmark = pytest.mark.browser
PHONE = pytest.mark.parametrize("tab", [{"viewport": {"width": 375, "height": 800}}], indirect=True)


@PHONE
def test_check_is_a_block_on_a_phone(tab: Tab, service: Service) -> None:
    page = tab.page
    page.goto(f"{service.base}/runs/{service.runs['broken']}#checks")
    table = page.get_by_role("table")  # still a table to a screen reader
    expect(table.get_by_role("row")).to_have_count(4)
    expect(table.get_by_role("columnheader", name="Measured", exact=True)).to_have_count(1)
    for row in range(3):
        cells = page.locator("#checks tbody tr").nth(row).locator("th > span, td")
        boxes = [cell.bounding_box() for cell in cells.all()]
        assert all(box and box["x"] >= 0 and box["x"] + box["width"] <= 375 for box in boxes)
        tops = [box["y"] for box in boxes if box]
        assert tops == sorted(set(tops))  # one below the other
    expect(table.get_by_role("rowheader", name="Gradient parity of all components")).to_have_count(1)
    detail = page.locator("#checks .detail").bounding_box()
    required = page.locator("#checks td[data-label=Required]").nth(1).bounding_box()
    assert detail is not None
    assert required is not None
    assert required["y"] < detail["y"]  # numbers come before text
    measured = page.locator("#checks td[data-label=Measured]").nth(1)
    expect(measured).to_have_text("0.0216")
    label = "(cell) => getComputedStyle(cell, '::before').content"
    assert measured.evaluate(label) == '"Measured"'
    for scrolling in page.locator("#checks .scroll").all():
        assert scrolling.evaluate("(box) => box.scrollWidth <= box.clientWidth")


@PHONE
def test_phone_never_scrolls_sideways(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = add_run(engine, "running", moves=("starting",), name="a name that is longer than a phone is wide " * 2)
    add_stages(engine, run_id, {"prepare": "succeeded", "distributed": "running", "compare": "queued"}, stalled=1)
    for number in (run_id, service.runs["cifar"]):
        for name in SECTIONS:
            tab.page.goto("about:blank")
            tab.page.goto(f"{service.base}/runs/{number}#{name}")
            expect(tab.page.locator(f"#{name}")).to_be_visible()
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert tab.page.evaluate(wide) == 0, name
            link = tab.page.locator(f".tabs a[href='#{name}']")
            expect(link).to_be_in_viewport(ratio=0.9)  # the selected link is visible among the scrolling ones
    tab.page.get_by_role("link", name="Ranks and resources").click()
    assert tab.page.locator("#run-ranks .scroll").evaluate("(box) => box.scrollWidth <= box.clientWidth")
