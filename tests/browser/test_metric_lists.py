"""Which metrics a page draws and at which resolution: every metric is reachable, and zooming loads every point."""

import math

import pytest
from playwright.sync_api import expect
from sqlalchemy import Engine

from app.db import write_session
from tests.browser.chart_probe import EXPOSE, a_run, chart, coloured, drag, falling, measure, plot, visible
from tests.browser.conftest import Service, Tab
from tests.support.pages_data import HOSTILE, add_events, add_metric, add_usage

pytestmark = pytest.mark.browser


def test_every_metric_can_be_reached(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine)
    for number in range(30):
        measure(engine, run_id, 0, falling(5), key=f"layer {number:02d} norm")
    measure(engine, run_id, 0, falling(5), key="zz LAST")
    page = tab.page
    page.goto(f"{service.base}/runs/{run_id}#metrics")
    figures = page.locator("#metrics figure")
    expect(figures).to_have_count(12)
    expect(page.locator("[data-metrics-count]")).to_have_text("12 of 31 metrics.")
    page.get_by_role("button", name="Show 24").click()
    expect(figures).to_have_count(24)
    page.get_by_role("button", name="Show 31").click()
    expect(figures).to_have_count(31)
    expect(page.get_by_role("button", name="Show 31")).to_have_count(0)
    page.get_by_label("Filter metrics by name").fill("last")
    page.get_by_role("button", name="Find").click()
    expect(figures).to_have_count(1)
    expect(figures.get_by_role("heading")).to_have_text("zz LAST")
    expect(page.locator("[data-metrics-count]")).to_have_text("1 of 31 metrics; 1 match.")
    page.goto(f"{service.base}/runs/{run_id}?metric=nothing#metrics")
    expect(page.locator("[data-metrics-none]")).to_have_text("No matching metrics.")


def test_single_point_is_a_number_until_there_are_two(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine, "running")
    tab.page.goto(f"{service.base}/runs/{run_id}#metrics")
    expect(tab.page.locator("[data-metrics-none]")).to_be_visible()
    numbers, figures = tab.page.locator("[data-metrics-numbers] tbody tr"), tab.page.locator("#metrics figure")
    expect(tab.page.locator("[data-metrics-numbers]")).to_be_hidden()
    for rank in range(2):
        measure(engine, run_id, rank, [1234.5 + rank], key=HOSTILE, steps=[7])
    expect(numbers).to_have_count(2)
    for rank in range(2):
        cells = [HOSTILE, f"distributed rank {rank}", "7", f"1,23{4 + rank}.5"]
        expect(numbers.nth(rank).locator("th, td")).to_have_text(cells)
    expect(tab.page.locator("[data-metrics-none]")).to_be_hidden()
    live = numbers.all_inner_texts()
    tab.page.reload()
    assert numbers.all_inner_texts() == live  # the server renders the same
    assert figures.count() == 0
    measure(engine, run_id, 0, [2.5], key=HOSTILE, steps=[8])
    expect(figures.locator("canvas")).to_have_count(1)
    expect(numbers).to_have_count(0)
    expect(tab.page.locator("[data-metrics-numbers]")).to_be_hidden()


def test_losses_come_first_when_metrics_arrive(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine, "running")
    tab.page.goto(f"{service.base}/runs/{run_id}#metrics")
    expect(tab.page.locator("[data-metrics-none]")).to_be_visible()
    with write_session(engine) as session:
        for key in [*(f"a{number:02d}" for number in range(14)), "loss per token"]:
            add_metric(session, run_id, "distributed", 0, falling(5), key=key)
        add_events(session, run_id, "distributed", [{"type": "metrics", "step": 0, "values": {"a00": 0.0}}])
    names = tab.page.locator("#metrics figure h3")
    expect(names).to_have_count(12)
    live = names.all_inner_texts()
    assert live[0] == "loss per token"
    tab.page.reload()
    assert names.all_inner_texts() == live


def test_new_metric_joins_page_up_to_its_number(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine, "running")
    for number in range(11):
        measure(engine, run_id, 0, falling(5), key=f"m{number:02d}")
    tab.page.goto(f"{service.base}/runs/{run_id}#metrics")
    expect(tab.page.locator("#metrics canvas")).to_have_count(11)
    for number in range(11, 15):
        measure(engine, run_id, 0, falling(5), key=f"m{number:02d}")
    expect(tab.page.locator("#metrics canvas")).to_have_count(12)
    expect(tab.page.locator("[data-metrics-count]")).to_have_text("12 of 15 metrics.")


def test_closer_look_brings_finer_points(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine)
    for start in range(0, 20_000, 1000):
        steps = range(start, start + 1000)
        measure(engine, run_id, 0, [math.sin(step) for step in steps], steps=steps)
    page = tab.page
    holder = chart(page, service, run_id)
    figure = page.locator("#metrics figure")
    expect(figure.locator("figcaption")).to_contain_text("of 20,000 points, extremes kept.")
    before = plot(holder, "plot.data[0].length")
    assert before <= 300
    with page.expect_response(lambda answer: "from=" in answer.url):
        drag(page, holder, 0.5, 0.55)
    low, high = visible(holder)
    inside = f"plot.data[0].filter((step) => step >= {low} && step <= {high})"
    expect(holder.locator(".chart-notes")).to_contain_text("points of this range.")
    fine = plot(holder, inside)
    assert fine == [float(step) for step in range(math.ceil(low), math.floor(high) + 1)]  # all points
    assert visible(holder) == (low, high)
    holder.get_by_role("button", name="Reset zoom").click()
    expect(holder.locator(".chart-notes")).to_be_empty()
    assert plot(holder, "plot.data[0].length") > before


def test_finer_points_stay_while_run_goes_on(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine, "running")
    measure(engine, run_id, 0, [math.sin(step) for step in range(8000)])
    page = tab.page
    holder = chart(page, service, run_id)
    drag(page, holder, 0.5, 0.52)
    expect(holder.locator(".chart-notes")).to_contain_text("points of this range.")
    low, high = visible(holder)
    fine = f"plot.data[0].filter((step) => step >= {low} && step <= {high}).length"
    wanted = plot(holder, fine)
    assert wanted > 100
    holder.locator("input[type=range]").fill("0.5")  # another drawing, the same points
    assert (plot(holder, fine), visible(holder)) == (wanted, (low, high))
    with page.expect_response(lambda answer: "max_points=400" in answer.url):
        measure(engine, run_id, 0, [0.5] * 10, steps=range(8000, 8010))
    page.wait_for_function(
        "(holder) => window.charts.chartOf(holder).table.x.at(-1) === 8009", arg=holder.element_handle()
    )
    assert (plot(holder, fine), visible(holder)) == (wanted, (low, high))


def test_use_of_ranks_is_drawn_alike(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine)
    add_usage(engine, run_id, "prepare")
    add_usage(engine, run_id, "distributed", begin=30)
    tab.page.goto(f"{service.base}/runs/{run_id}#ranks")
    holder = tab.page.locator("#resources .chart").first
    expect(holder.locator("canvas")).to_have_count(1)
    tab.page.evaluate(EXPOSE)
    assert coloured(holder, 0, 3, 7) > 0
    assert coloured(holder, 0, 9, 30) == 0  # no samples between the stages
    assert holder.locator(".odd-at").count() == 0


def test_hostile_name_stays_text(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine, "running")
    measure(engine, run_id, 0, [1.0, math.nan, 3.0], key=HOSTILE)
    measure(engine, run_id, 0, falling(5))
    page = tab.page
    holder = chart(page, service, run_id, HOSTILE)
    measure(engine, run_id, 0, falling(5), key=f"{HOSTILE} & more")
    expect(page.locator("#metrics canvas")).to_have_count(3)
    expect(page.locator("#metrics h3").last).to_have_text(f"{HOSTILE} & more")
    expect(holder.locator(".odd-at button")).to_have_count(1)
    page.get_by_label("Filter metrics by name").fill("<IMG")
    page.get_by_role("button", name="Find").click()
    expect(page.locator("#metrics figure")).to_have_count(2)
    assert page.locator("#metrics img, #metrics script").count() == 0
