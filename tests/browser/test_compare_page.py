"""Two to ten runs side by side: differences first, margins, a style per run, confusion matrices with differences."""

import math

import pytest
from playwright.sync_api import expect
from sqlalchemy import Engine

from app.db import write_session
from tests.browser.chart_probe import chart_on, drag, plot, visible
from tests.browser.conftest import OFF, Service, Tab
from tests.browser.test_every_page import sideways
from tests.support.pages_data import MOVES, add_metric, add_run, save_result
from tests.support.results import CLASSES, make_result, matrix
from trainer.contract.result import ConfusionPanel

pytestmark = pytest.mark.browser
NARROW = pytest.mark.parametrize(
    "tab", [pytest.param({"viewport": {"width": 375, "height": 800}}, id="375")], indirect=True
)


@pytest.fixture(scope="module")
def ids(service: Service, engine: Engine) -> list[int]:
    """Ten runs with other seeds, two ranks each, the second one wrong by ten per cent more often than the first."""
    made = []
    for number in range(10):
        run_id = add_run(
            engine, "succeeded", verdict="pass", reason="completed", moves=MOVES, params={"seed": 100 + number}
        )
        panel = ConfusionPanel(title="Confusions", labels=CLASSES, counts=matrix(90 if number else 80), mode="no_sync")
        save_result(service.settings, run_id, make_result(panels=[panel]))
        with write_session(engine) as session:
            for rank in range(2):
                # Every run logs at its own steps: they must not break each other's lines.
                steps = range(number, 60 + number, 3)
                values = [2.0 - step / 60 + number + 0.3 * rank for step in range(20)]
                add_metric(session, run_id, "train", rank, values, steps=steps)
                add_metric(session, run_id, "train", rank, values, key="rate")
            if number < 2:
                add_metric(session, run_id, "train", 0, [math.sin(step + number) for step in range(9000)], key="long")
        made.append(run_id)
    return made


def address(service: Service, ids: list[int], query: str = "") -> str:
    return f"{service.base}/compare?ids={','.join(map(str, ids))}{query}"


def test_what_differs_comes_first(tab: Tab, service: Service, engine: Engine, ids: list[int]) -> None:
    page = tab.page
    page.goto(address(service, ids[:3]))
    different = page.get_by_role("region", name="Parameters that differ")
    expect(different.locator("tbody th")).to_have_text(["seed"])
    expect(different.locator("tbody td")).to_have_text(["100", "101", "102"])
    same = page.get_by_role("region", name="Equal parameters")
    expect(same).to_be_hidden()
    page.get_by_text("equal parameters").click()
    expect(same).to_be_visible()
    expect(same.locator("tbody th", has_text="updates")).to_be_visible()
    checks = page.get_by_role("region", name="Checks")
    expect(checks).to_contain_text("2.98e-8, must be at most 1e-6")
    expect(checks).to_contain_text("3.0 % of the limit")
    expect(checks).to_contain_text("18, expected 18 statements")
    expect(checks).to_contain_text("0.0235, must exceed 1e-6")
    expect(checks).not_to_contain_text("times of the limit")
    expect(page.locator("#markdown")).to_contain_text("| negative_control | 0.0235 (must exceed 1e-6) |")
    twin = add_run(engine, "succeeded", verdict="pass", reason="completed", moves=MOVES, params={"seed": 100})
    page.goto(address(service, [ids[0], twin]))
    expect(page.get_by_text("None: all parameters are equal.")).to_be_visible()
    expect(different).to_have_count(0)


def test_ten_runs_have_ten_looks(tab: Tab, service: Service, ids: list[int]) -> None:
    page = tab.page
    page.goto(address(service, ids))
    figure = page.locator("#metrics figure", has=page.get_by_role("heading", name="loss", exact=True))
    expect(figure.locator("canvas")).to_have_count(1)
    keys = figure.locator(".line-key")
    expect(keys).to_have_count(20)
    expect(keys.first).to_contain_text(f"run {ids[0]} · train rank 0")
    looks = keys.locator("path").evaluate_all(
        "(paths) => paths.map((path) => [getComputedStyle(path).stroke, path.getAttribute('stroke-dasharray') ?? ''])"
    )
    colours = [colour for colour, _ in looks]
    assert colours[::2] == colours[1::2]  # both ranks of a run share its colour
    assert len(set(colours)) == 10
    assert len({tuple(look) for look in looks}) == 20
    assert all(first[1] != second[1] for first, second in zip(looks[::2], looks[1::2], strict=True))
    gaps = """async (holder) => {
      const { chartOf } = await import(document.querySelector('script[src*="js/charts.js"]').src);
      const { plot } = chartOf(holder);
      return plot.series.slice(1).map((series) => series._paths.gaps.length);
    }"""
    assert figure.locator(".chart").evaluate(gaps) == [0] * 20


def test_confusions_show_their_difference(tab: Tab, service: Service, ids: list[int]) -> None:
    page = tab.page
    page.goto(address(service, ids[:3]))
    titles = page.locator("h3", has_text="Difference")
    expect(titles).to_have_text([f"Difference: run {other} minus run {ids[0]}" for other in ids[1:3]])
    first = page.get_by_role("region", name=f"Difference: run {ids[1]} minus run {ids[0]}").locator("tbody tr").first
    expect(first.locator("td").first).to_have_text("+10+10.0 %")
    page.goto(address(service, ids[1:3]))
    again = page.get_by_role("region", name="Difference").locator("tbody tr").first
    expect(again.locator("td").first).to_have_text("00.0 %")  # equal matrices


def test_closer_look_brings_points_of_all_runs(tab: Tab, service: Service, ids: list[int]) -> None:
    page = tab.page
    holder = chart_on(page, address(service, ids[:2]), "long")
    figure = page.locator("#metrics figure", has=page.get_by_role("heading", name="long", exact=True))
    expect(figure.locator("figcaption")).to_contain_text("of 18,000 points, extremes kept.")
    drag(page, holder, 0.5, 0.52)
    expect(holder.locator(".chart-notes")).to_contain_text("points of this range.")
    low, high = visible(holder)
    wanted = list(range(math.ceil(low), math.floor(high) + 1))
    for line in (1, 2):
        drawn = (
            f"plot.data[0].filter((step, at) => step >= {low} && step <= {high} && plot.data[{line}][at] !== undefined)"
        )
        assert plot(holder, drawn) == wanted


@OFF
def test_comparison_needs_no_script(tab: Tab, service: Service, ids: list[int]) -> None:
    page = tab.page
    page.goto(address(service, ids[:2]))
    figure = page.locator("#metrics figure", has=page.get_by_role("heading", name="loss", exact=True))
    expect(figure.locator("svg polyline")).to_have_count(4)
    expect(figure.locator("svg polyline").first).to_be_visible()
    expect(figure.locator(".line-key")).to_have_count(4)
    expect(figure.locator(".chart-tools")).to_be_hidden()
    figure.get_by_text("Values").click()
    expect(figure.locator("table thead th")).to_have_count(5)
    expect(page.get_by_role("region", name="Checks")).to_be_visible()
    page.get_by_label("Filter metrics by name").fill("none of them")
    page.get_by_role("button", name="Find").click()
    expect(page.locator("#metrics figure")).to_have_count(0)
    assert f"ids={ids[0]}%2C{ids[1]}" in page.url


@NARROW
def test_names_stay_in_sight_when_narrow(tab: Tab, service: Service, ids: list[int]) -> None:
    page = tab.page
    page.goto(address(service, ids))
    assert sideways(page) == 0
    table = page.get_by_role("region", name="Parameters that differ")
    name, last = table.locator("tbody th"), table.locator("tbody td").last
    table.evaluate("(region) => { region.scrollLeft = region.scrollWidth; }")
    frame, left, right = (item.bounding_box() for item in (table, name, last))
    assert frame
    assert left
    assert right
    assert left["x"] == pytest.approx(frame["x"], abs=1)
    assert right["x"] + right["width"] <= frame["x"] + frame["width"] + 1
