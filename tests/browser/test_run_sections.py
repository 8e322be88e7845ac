"""The run page begins with the answer; the rest is in sections reachable by links, keys, URLs and find-in-page."""

import re

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine

from tests.browser.chart_probe import a_run, falling, measure
from tests.browser.conftest import OFF, SECTIONS, Service, Tab, next_frames, shown
from tests.support.pages_data import add_run, save_result
from tests.support.results import every_panel, make_result

pytestmark = pytest.mark.browser
DESKTOP = pytest.mark.parametrize("tab", [{"viewport": {"width": 1280, "height": 800}}], indirect=True)


def current(page: Page) -> list[str]:
    return page.locator(".tabs [aria-current]").all_text_contents()


def in_view(page: Page, selector: str) -> bool:
    box = page.locator(selector).bounding_box()
    height = page.viewport_size["height"] if page.viewport_size else 0
    return box is not None and box["y"] >= 0 and box["y"] + box["height"] <= height


def at(page: Page, address: str) -> None:
    expect(page).to_have_url(re.compile(f"{re.escape(address)}$"))


def test_links_show_one_section_and_keep_the_history(tab: Tab, service: Service) -> None:
    page = tab.page
    page.goto(f"{service.base}/runs/{service.runs['passed']}")
    assert (shown(page), current(page)) == (["overview"], ["Overview"])
    assert page.get_by_role("region", name="Checks").count() == 0  # hidden content is not read out
    page.get_by_role("link", name="Checks", exact=True).click()
    assert (shown(page), current(page)) == (["checks"], ["Checks"])
    at(page, "#checks")
    page.get_by_role("link", name="Parameters and history").click()
    assert shown(page) == ["parameters"]
    page.go_back()
    expect(page.locator("#checks")).to_be_visible()
    assert (shown(page), current(page)) == (["checks"], ["Checks"])
    page.go_back()
    expect(page.locator("#overview")).to_be_visible()
    page.go_forward()
    expect(page.locator("#checks")).to_be_visible()


def test_links_inside_a_section_lead_to_others(tab: Tab, service: Service) -> None:
    page = tab.page
    page.goto(f"{service.base}/runs/{service.runs['passed']}")
    page.get_by_role("link", name="All 3 checks").click()
    assert shown(page) == ["checks"]
    page.get_by_role("link", name="Results", exact=True).click()
    page.get_by_role("link", name="Confusions, no_sync", exact=True).click()
    assert shown(page) == ["results"]
    assert in_view(page, "#panel-6 figcaption")
    page.get_by_role("link", name="Absolute errors", exact=True).click()  # the one on the overview
    assert shown(page) == ["overview"]
    at(page, "#panel-2")


def test_keys_reach_every_section(tab: Tab, service: Service) -> None:
    page = tab.page
    page.goto(f"{service.base}/runs/{service.runs['passed']}")
    page.locator(".tabs a").first.focus()
    for name in SECTIONS[1:]:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.hash") == f"#{name}"
    page.keyboard.press("Enter")
    assert shown(page) == ["parameters"]
    assert page.evaluate("document.activeElement.id") == "parameters"
    page.keyboard.press("Tab")
    assert page.locator("#parameters :focus").get_attribute("data-copy") == "reproduce"
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.hash") == "#parameters"


@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_has_an_address(tab: Tab, service: Service, name: str) -> None:
    page = tab.page
    page.goto(f"{service.base}/runs/{service.runs['passed']}#{name}")
    expect(page.locator(f"#{name}")).to_be_visible()
    assert shown(page) == [name]
    assert in_view(page, "h1")  # a reader sees which run this is


@pytest.mark.parametrize(
    ("anchor", "section"),
    [("panel-6", "results"), ("history", "parameters"), ("resources", "ranks"), ("log-lines", "log")],
)
def test_address_of_a_part_opens_its_section(tab: Tab, service: Service, anchor: str, section: str) -> None:
    page = tab.page
    page.goto(f"{service.base}/runs/{service.runs['passed']}#{anchor}")
    expect(page.locator(f"#{anchor}")).to_be_in_viewport()
    assert shown(page) == [section]
    at(page, f"#{anchor}")


def test_unknown_address_shows_the_overview(tab: Tab, service: Service) -> None:
    for anchor in ("nothing", "%E0%A4%A"):
        tab.page.goto("about:blank")
        tab.page.goto(f"{service.base}/runs/{service.runs['passed']}#{anchor}")
        expect(tab.page.locator("#overview")).to_be_visible()
        assert shown(tab.page) == ["overview"]


@pytest.mark.parametrize(
    ("text", "section"),
    [("update 11 done", "log"), ("negative_control", "checks"), ("batch_size_per_rank", "parameters")],
)
def test_search_for_a_text_opens_its_section(tab: Tab, service: Service, text: str, section: str) -> None:
    # A text link works like find-in-page: both search content that is hidden until found.
    page = tab.page
    page.goto(f"{service.base}/runs/{service.runs['passed']}#:~:text={text}")
    expect(page.locator(f"#{section}")).to_be_visible()
    assert (shown(page), len(current(page))) == ([section], 1)
    at(page, f"#{section}")


@OFF
def test_without_script_all_sections_are_there(tab: Tab, service: Service) -> None:
    page = tab.page
    page.goto(f"{service.base}/runs/{service.runs['passed']}")
    assert shown(page) == SECTIONS
    page.get_by_role("link", name="Parameters and history").click()
    expect(page.locator("#parameters")).to_be_in_viewport()
    assert in_view(page, ".tabs")
    assert shown(page) == SECTIONS


def test_blocked_script_leaves_page_readable(tab: Tab, service: Service) -> None:
    tab.page.route("**/js/sections.js*", lambda route: route.abort())
    tab.page.goto(f"{service.base}/runs/{service.runs['passed']}")
    assert shown(tab.page) == SECTIONS
    tab.complaints.clear()  # of the script this test kept away


def test_paper_gets_every_section(tab: Tab, service: Service) -> None:
    tab.page.goto(f"{service.base}/runs/{service.runs['passed']}")
    tab.page.emulate_media(media="print")
    assert shown(tab.page) == SECTIONS


@DESKTOP
@pytest.mark.parametrize(("name", "words"), [("passed", "Verdict: pass"), ("broken", "Verdict: fail")])
def test_first_screen_holds_the_answer(tab: Tab, service: Service, name: str, words: str) -> None:
    page = tab.page
    page.goto(f"{service.base}/runs/{service.runs[name]}")
    expect(page.locator("#run-verdict h2")).to_have_text(words)
    expect(page.locator("#run-lead figure")).to_contain_text("Absolute errors")
    decide = page.locator("#run-deciding .verdicts li")
    if name == "broken":
        expect(page.locator("#run-deciding h2").first).to_have_text("Failed checks")
        expect(decide).to_have_count(1)
        expect(decide).to_contain_text(re.compile(r"failed\s*Gradient parity of all components"))
    else:
        expect(decide.first).to_contain_text(re.compile(r"passed\s*Gradient parity of all components"))
    for part in ("#run-verdict", "#run-lead svg.on-wide", "#run-deciding .card", "#limits li"):
        assert in_view(page, f"{part} >> nth=0"), part
    assert in_view(page, "#limits")


def test_named_panel_leads_and_is_drawn_once(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = add_run(engine, "succeeded", verdict="pass", reason="completed", moves=("starting", "running"))
    save_result(service.settings, run_id, make_result(panels=every_panel()).model_copy(update={"headline": "Tokens"}))
    tab.page.goto(f"{service.base}/runs/{run_id}")
    expect(tab.page.locator("#run-lead h3")).to_have_text("Tokens")
    expect(tab.page.locator("figure h3", has_text="Tokens")).to_have_count(1)
    expect(tab.page.locator("figure h3", has_text="Absolute errors")).to_have_count(1)


WIDTHS = """() => [...document.querySelectorAll("#metrics .chart-box, #resources .chart-box")].map((box) => {
  const plot = box.querySelector(".uplot");
  return [Math.round(box.clientWidth), plot && Math.round(plot.getBoundingClientRect().width)];
})"""


def test_charts_are_drawn_to_size_when_shown(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = a_run(engine)
    measure(engine, run_id, 0, falling(50))
    page = tab.page
    page.goto(f"{service.base}/runs/{run_id}")
    next_frames(page)
    assert page.locator("canvas").count() == 0  # hidden charts are not drawn
    page.get_by_role("link", name="Metrics").click()
    expect(page.locator("#metrics canvas")).to_have_count(1)
    for width in (1280, 700):
        page.get_by_role("link", name="Checks", exact=True).click()
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="dark" if width == 700 else "light")
        page.get_by_role("link", name="Metrics").click()
        page.wait_for_function(f"({WIDTHS})().every(([box, plot]) => box > 300 && Math.abs(box - plot) < 2)")
