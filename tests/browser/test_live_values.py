"""Charts that appear or grow on an open page have the same table of values as a reloaded page."""

import math
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from sqlalchemy import Engine

from tests.browser.chart_probe import a_run, falling, measure
from tests.browser.conftest import Service, Tab
from tests.support.pages_data import HOSTILE, add_usage

pytestmark = pytest.mark.browser
READ = """(fold) => ({
  label: fold.querySelector(".scroll").getAttribute("aria-label"),
  tall: fold.querySelector(".scroll").classList.contains("tall"),
  notes: [...fold.querySelectorAll("p")].map((note) => note.textContent),
  rows: [...fold.querySelectorAll("tr")].map((row) => [...row.cells].map(
    (cell) => [cell.tagName, cell.scope ?? "", cell.className, cell.textContent],
  )),
  after: fold.previousElementSibling.className,
})"""


def fold_of(page: Page, key: str) -> Locator:
    return page.locator("#metrics figure", has=page.get_by_role("heading", name=key, exact=True)).locator(
        "details.fold"
    )


def texts(fold: Locator) -> list[list[str]]:
    return [row.locator("th, td").all_text_contents() for row in fold.locator("tbody tr").all()]


def read(fold: Locator) -> dict[str, Any]:
    found: dict[str, Any] = fold.evaluate(READ)
    return found


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        ("loss", [falling(5), falling(3, 1)]),
        (HOSTILE, [[1e7, 2.5e-9, -1234567.25, 123456.0, 0.0, 1e6], [math.nan, math.inf, -math.inf, 0.1, 7]]),
        ("many", [[math.sin(step) for step in range(140)], []]),
    ],
)
def test_chart_that_arrives_has_its_table(
    tab: Tab, service: Service, engine: Engine, key: str, lines: list[list[float]]
) -> None:
    run_id = a_run(engine, "running")
    page = tab.page
    page.goto(f"{service.base}/runs/{run_id}#metrics")
    expect(page.locator("[data-metrics-none]")).to_be_visible()
    for rank, values in enumerate(lines):
        if values:
            measure(engine, run_id, rank, values, key=key, steps=[rank + 2 * step for step in range(len(values))])
    fold = fold_of(page, key)
    expect(fold).to_have_count(1)
    steps = {rank + 2 * step for rank, values in enumerate(lines) for step in range(len(values))}
    expect(fold.locator("tbody tr")).to_have_count(min(100, len(steps)))
    expect(fold.locator("thead th")).to_have_count(1 + sum(bool(values) for values in lines))
    live = read(fold)
    page.reload()
    expect(fold).to_have_count(1)
    assert live == read(fold)


def test_table_keeps_up_while_it_is_read(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine, "running")
    measure(engine, run_id, 0, [3.0, 2.0], steps=[0, 1])
    page = tab.page
    page.goto(f"{service.base}/runs/{run_id}#metrics")
    fold = fold_of(page, "loss")
    fold.locator("summary").click()
    expect(fold.locator("tbody tr")).to_have_count(2)
    first = fold.locator("tbody td").first
    first.evaluate("(cell) => { cell.kept = true; getSelection().selectAllChildren(cell); }")
    measure(engine, run_id, 0, [1.5], steps=[2])
    measure(engine, run_id, 1, [9.0], steps=[1])
    expect(fold.locator("tbody tr")).to_have_count(3)
    expect(fold.locator("thead th")).to_have_text(["step", "distributed rank 0", "distributed rank 1"])
    assert texts(fold) == [["0", "3", "–"], ["1", "2", "9"], ["2", "1.5", "–"]]
    expect(fold.locator("summary")).to_have_text("Values")
    assert fold.get_attribute("open") is not None
    assert first.evaluate("(cell) => [cell.kept, String(getSelection())]") == [True, "0"]
    assert page.locator("#metrics details.fold").count() == 1


def test_number_that_becomes_a_chart_gets_its_table(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine, "running")
    measure(engine, run_id, 0, [5.0], steps=[3])
    page = tab.page
    page.goto(f"{service.base}/runs/{run_id}#metrics")
    expect(page.locator("[data-metrics-numbers] tbody tr")).to_have_count(1)
    measure(engine, run_id, 0, [4.0], steps=[4])
    fold = fold_of(page, "loss")
    expect(fold.locator("tbody tr")).to_have_count(2)
    assert texts(fold) == [["3", "5"], ["4", "4"]]
    assert page.locator("[data-metrics-numbers] tbody tr").count() == 0


def test_table_of_what_ranks_use_keeps_up_while_it_is_read(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine, "running")
    add_usage(engine, run_id, "prepare")
    page = tab.page
    page.goto(f"{service.base}/runs/{run_id}#ranks")
    fold = page.locator("#resources figure").first.locator("details.fold")
    expect(page.locator("#resources canvas").first).to_be_visible()
    fold.locator("summary").click()
    before = len(texts(fold))
    first = fold.locator("tbody td").first
    first.evaluate("(cell) => { cell.kept = true; getSelection().selectAllChildren(cell); }")
    add_usage(engine, run_id, "distributed", begin=30)
    expect(fold.locator("tbody tr")).to_have_count(2 * before)
    assert fold.get_attribute("open") is not None
    assert first.evaluate("(cell) => [cell.kept, String(getSelection()) === cell.textContent]") == [True, True]
    live = [read(one) for one in page.locator("#resources figure details.fold").all()]
    page.reload()
    assert live == [read(one) for one in page.locator("#resources figure details.fold").all()]
