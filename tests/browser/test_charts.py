"""Charts of the run page in a real browser: zoom, hover, scales, smoothing, gaps, and keyboard use."""

import math

import pytest
from playwright.sync_api import expect
from sqlalchemy import Engine

from tests.browser.chart_probe import a_run, chart, coloured, drag, falling, hover, measure, plot, visible
from tests.browser.conftest import Service, Tab, next_frames

pytestmark = pytest.mark.browser
EVEN, UNEVEN = range(0, 100, 2), range(1, 101, 2)


@pytest.mark.parametrize(("odd", "name"), [(math.nan, "NaN"), (math.inf, "∞"), (-math.inf, "−∞"), (0.8, "")])
def test_first_odd_value_is_gap_with_mark(tab: Tab, service: Service, engine: Engine, odd: float, name: str) -> None:
    run_id = a_run(engine)
    measure(engine, run_id, 0, falling(50), steps=EVEN)
    values = falling(50, 1)
    values[20] = values[24] = odd
    measure(engine, run_id, 1, values, steps=UNEVEN)
    holder = chart(tab.page, service, run_id)
    marks = holder.locator(".odd-at button")
    assert coloured(holder, 0, 0, 98) > 500
    assert all(coloured(holder, 0, step - 0.9, step + 0.9) for step in range(1, 98, 4))  # steps of rank 1 break no line
    assert coloured(holder, 1, 20, 36) > 0
    if not name:
        assert coloured(holder, 1, 39.3, 42.7) > 0
        assert marks.count() == 0
        return
    assert coloured(holder, 1, 39.3, 42.7) == 0  # from the last value before it to the first one after
    assert coloured(holder, 1, 43.5, 46.5) > 0
    assert coloured(holder, 1, 47.3, 50.7) == 0
    words = f"distributed rank 1: first {name} at 41"
    expect(marks).to_have_count(1)
    expect(marks).to_have_text(name)
    expect(marks).to_have_attribute("aria-label", words)
    expect(holder.locator(".chart-notes")).to_have_text(words)
    at = holder.locator(".odd-at").evaluate("(mark) => mark.getBoundingClientRect().left")
    edge = holder.locator(".u-over").evaluate("(over) => over.getBoundingClientRect().left")
    assert at - edge == pytest.approx(plot(holder, "plot.valToPos(41, 'x')"), abs=1.5)
    expect(holder.locator(".odd-words")).to_be_hidden()
    marks.hover()
    expect(holder.locator(".odd-words")).to_have_text(words)
    expect(holder.locator(".odd-words")).to_be_visible()
    marks.press("Enter")
    expect(holder.get_by_role("status")).to_contain_text(
        f"step 41, distributed rank 0 1.1 at 40, distributed rank 1 {name}"
    )


def test_drawing_without_script_marks_odd_value(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine)
    measure(engine, run_id, 0, [1.0, math.nan, 0.5, 0.4])
    tab.page.route("**/js/charts.js*", lambda route: route.abort())
    tab.page.goto(f"{service.base}/runs/{run_id}")
    expect(tab.page.locator("#metrics .odd-mark title")).to_have_text("distributed rank 0: first NaN at 1")
    tab.complaints.clear()  # of the script this test kept away


def test_zoom_survives_new_points(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine, "running")
    measure(engine, run_id, 0, falling(50))
    measure(engine, run_id, 0, falling(50), key="other")
    page = tab.page
    holder = chart(page, service, run_id)
    other = page.locator("#metrics .chart", has=page.locator("[aria-label^='other, drawing']"))
    assert visible(holder) == (0, 49)
    reset = holder.get_by_role("button", name="Reset zoom")
    expect(reset).to_be_disabled()
    drag(page, holder, 0.2, 0.5)
    zoomed = visible(holder)
    assert 8 < zoomed[0] < 12
    assert 22 < zoomed[1] < 27
    for key in ("loss", "other"):
        measure(engine, run_id, 0, falling(30), key=key, steps=range(50, 80))
    page.wait_for_function(
        "(holder) => window.charts.chartOf(holder).plot.data[0].length === 80", arg=holder.element_handle()
    )
    assert visible(holder) == zoomed
    assert visible(other) == (0, 79)  # a chart without zoom follows the run
    reset.click()
    assert visible(holder) == (0, 79)
    expect(reset).to_be_disabled()
    drag(page, holder, 0.5, 0.9)
    assert visible(holder)[0] > 30
    holder.locator(".u-over").dblclick()
    assert visible(holder) == (0, 79)


def test_pointer_shows_every_rank_in_every_chart(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine)
    for rank in range(2):
        measure(engine, run_id, rank, [100.0 * rank + step for step in range(60)])
        measure(engine, run_id, rank, [1000.0 * rank + step for step in range(40)], key="other")
    page = tab.page
    holder = chart(page, service, run_id)
    other = page.locator("#metrics .chart", has=page.locator("[aria-label^='other, drawing']"))
    hover(page, holder, 20)
    expect(holder.locator(".key-value")).to_have_text(["20", "120"])
    expect(holder.locator(".key-place")).to_have_text("step 20")
    expect(other.locator(".key-value")).to_have_text(["20", "1,020"])
    hover(page, holder, 50)  # where the other chart has no more points
    expect(holder.locator(".key-value")).to_have_text(["50", "150"])
    expect(other.locator(".key-value")).to_have_text(["", ""])
    page.mouse.move(0, 0)
    expect(holder.locator(".key-value")).to_have_text(["", ""])


def test_log_scale_spaces_decades_evenly(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine)
    measure(engine, run_id, 0, [10.0 ** (step / 10) for step in range(40)])
    measure(engine, run_id, 0, [step - 10.0 for step in range(40)], key="signed")
    measure(engine, run_id, 0, [-1.0 - step for step in range(40)], key="below")
    holder = chart(tab.page, service, run_id)
    decades = "[plot.valToPos(1, 'y') - plot.valToPos(10, 'y'), plot.valToPos(100, 'y') - plot.valToPos(1000, 'y')]"
    first, last = plot(holder, decades)
    assert last > 50 * first
    button = holder.get_by_role("button", name="Log scale")
    button.click()
    first, last = plot(holder, decades)
    assert first == pytest.approx(last)
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(holder.locator(".chart-notes")).to_be_empty()
    button.click()
    assert plot(holder, decades)[1] > 50 * plot(holder, decades)[0]
    for key, words in (("signed", "A logarithmic scale cannot show 11 values"), ("below", "No logarithmic scale")):
        holder = chart(tab.page, service, run_id, key)
        holder.get_by_role("button", name="Log scale").click()
        expect(holder.locator(".chart-notes")).to_contain_text(words)
        expect(holder.locator(".chart-notes")).to_contain_text("first distributed rank 0 at 0")
        assert plot(holder, "plot.data[1][39]") == (29 if key == "signed" else -40)


def test_smoothing_keeps_raw_line(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine)
    values = [1.0 + (-1) ** step for step in range(50)]
    values[30] = math.nan
    measure(engine, run_id, 0, values)
    measure(engine, run_id, 0, [3.0] * 50, key="constant")
    holder = chart(tab.page, service, run_id)
    raw = plot(holder, "plot.data[1]")
    assert len(plot(holder, "plot.data")) == 2
    holder.locator("input[type=range]").fill("0.9")
    smooth, behind = plot(holder, "plot.data.slice(1)")
    assert behind == raw
    assert smooth[0] == raw[0]  # corrected for its start
    assert smooth[30] is None
    expected, known = 0.0, 0.0
    for value in values[:6]:
        expected, known = 0.9 * expected + 0.1 * value, 0.9 * known + 0.1
    assert smooth[5] == pytest.approx(expected / known)
    assert max(abs(value - 1.0) for value in smooth[20:30]) < 0.1
    expect(holder.locator(".weight")).to_have_text("0.9")
    hover(tab.page, holder, 5)
    expect(holder.locator(".key-value")).to_contain_text("0 (smoothed 0.94737)")
    holder.locator("input[type=range]").fill("0")
    assert plot(holder, "plot.data.slice(1)") == [raw]
    steady = chart(tab.page, service, run_id, "constant")
    steady.locator("input[type=range]").fill("0.99")
    assert plot(steady, "plot.data[1]") == pytest.approx([3.0] * 50)


def test_line_is_hidden_by_click_and_by_key(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine)
    for rank in range(2):
        measure(engine, run_id, rank, falling(50, rank))
    holder = chart(tab.page, service, run_id)
    first, second = holder.get_by_role("button", name="distributed rank").all()
    assert coloured(holder, 1, 0, 49) > 200
    second.click()
    expect(second).to_have_attribute("aria-pressed", "false")
    next_frames(tab.page)
    assert coloured(holder, 1, 0, 49) == 0
    assert coloured(holder, 0, 0, 49) > 200
    second.press("Space")
    next_frames(tab.page)
    assert coloured(holder, 1, 0, 49) > 200
    first.focus()
    tab.page.keyboard.press("Enter")
    expect(first).to_have_attribute("aria-pressed", "false")
    dashes = [key.locator("path").get_attribute("stroke-dasharray") for key in (first, second)]
    assert dashes[0] != dashes[1]  # distinguishable without colours


def test_keyboard_zooms_and_walks(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine)
    measure(engine, run_id, 0, falling(101))
    page = tab.page
    holder = chart(page, service, run_id)
    said = holder.get_by_role("status")
    holder.locator(".chart-box").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(said).to_contain_text("step 1, distributed rank 0 1.4901")
    page.keyboard.press("End")
    expect(said).to_contain_text("step 100, distributed rank 0 0.5099")
    page.keyboard.press("+")
    assert visible(holder) == (50, 100)
    page.keyboard.press("Shift+ArrowLeft")
    assert visible(holder) == (37.5, 87.5)
    page.keyboard.press("-")
    page.keyboard.press("-")
    assert visible(holder) == (0, 100)
    page.keyboard.press("+")
    page.keyboard.press("0")
    assert visible(holder) == (0, 100)
    expect(said).to_contain_text("0 to 100 of 0 to 100")


def test_values_between_gaps_are_dots(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine)
    measure(engine, run_id, 0, [1.0 if step % 2 else math.nan for step in range(45)])
    measure(engine, run_id, 0, [math.nan] * 45, key="nothing")
    holder = chart(tab.page, service, run_id)
    dots = [coloured(holder, 0, step - 0.2, step + 0.2) > 0 for step in range(11, 41)]
    assert dots == [True, False] * 15
    assert coloured(chart(tab.page, service, run_id, "nothing"), 0, 0, 44) == 0


def test_steady_value_has_room_around_it(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine)
    measure(engine, run_id, 0, [0.0] * 50)
    measure(engine, run_id, 0, [200.0] * 50, key="high")
    scale = "[plot.scales.y.min, plot.scales.y.max]"
    assert plot(chart(tab.page, service, run_id), scale) == [-0.5, 0.5]
    assert plot(chart(tab.page, service, run_id, "high"), scale) == [180, 220]


def test_theme_changes_colours(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine)
    measure(engine, run_id, 0, falling(50))
    holder = chart(tab.page, service, run_id)
    drag(tab.page, holder, 0.2, 0.5)
    zoomed = visible(holder)
    light = tab.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--c0')")
    tab.page.emulate_media(color_scheme="dark")
    assert tab.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--c0')") != light
    next_frames(tab.page)
    assert coloured(holder, 0, *zoomed) > 200
    assert visible(holder) == zoomed
