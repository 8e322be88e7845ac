"""The list of runs in a browser: filters, order, columns, selection, pins, and actions on several runs."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine

from app.db import create_database_engine, write_session
from app.runs.models import Run
from app.schema import migrate
from app.settings import Settings
from tests.browser.conftest import BOTH, Service, Tab, serve
from tests.browser.test_every_page import serious, sideways
from tests.support.pages_data import add_run

pytestmark = pytest.mark.browser
AWAY = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => %s})"
CHANGED = "document.dispatchEvent(new Event('visibilitychange'))"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service behind a path prefix, with 60 old runs on two pages: tests add their own and find them by tag."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("list"))
    migrate(settings)
    made = create_database_engine(settings)
    for number in range(60):
        add_run(made, "succeeded", verdict="pass", name=f"old {number}", tags=["old"])
    made.dispose()
    for base in serve(settings.data_dir, "--no-worker"):
        yield Service(base=base, settings=settings, runs={})


@pytest.fixture
def engine(lab: Service) -> Iterator[Engine]:
    made = create_database_engine(lab.settings)
    yield made
    made.dispose()


@pytest.fixture
def runs(engine: Engine, request: pytest.FixtureRequest) -> dict[str, int]:
    """Runs with a tag of this test only."""
    tag = tag_of(request.node.name)
    return {
        "good": add_run(engine, "succeeded", verdict="pass", name="good", tags=[tag, "two words"], took_seconds=30.0),
        "bad": add_run(engine, "succeeded", verdict="fail", name="bad", tags=[tag], took_seconds=10.0),
        "broken": add_run(engine, "failed", name="broken", tags=[tag, "two words"], took_seconds=20.0),
        "waiting": add_run(engine, "queued", name="waiting", tags=[tag], backend=None, device=None),
    }


def tag_of(name: str) -> str:
    return re.sub(r"\W", "-", name)[:60]


@pytest.fixture
def page(tab: Tab, lab: Service, runs: dict[str, int], request: pytest.FixtureRequest) -> Page:
    """The list, filtered by the runs of this test."""
    tab.page.goto(f"{lab.base}/runs?tag={tag_of(request.node.name)}")
    return tab.page


def named(page: Page) -> list[str]:
    return [text.split(" · ")[1] for text in page.locator("#rows th > a:first-child").all_inner_texts()]


def expect_names(page: Page, names: list[str]) -> None:
    """Wait until the list has these runs in this order."""
    expect(page.locator("#rows th > a:first-child")).to_have_text([re.compile(f" · {name}$") for name in names])


def box(page: Page, run_id: int) -> str:
    return f"input[name=run][value='{run_id}']"


@BOTH
def test_headings_sort_and_turn(page: Page) -> None:
    expect_names(page, ["waiting", "broken", "bad", "good"])
    page.get_by_role("link", name="Took").click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Took")
    expect_names(page, ["good", "broken", "bad", "waiting"])  # it has no duration
    page.get_by_role("link", name="Took").click()
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("Took")
    expect_names(page, ["bad", "broken", "good", "waiting"])
    page.get_by_role("link", name="Created").click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Created")
    page.get_by_role("link", name="Created").click()
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("Created")
    expect_names(page, ["good", "bad", "broken", "waiting"])


@BOTH
def test_filters_add_up_in_the_address(page: Page, lab: Service) -> None:
    page.locator("#pick-state summary").click()
    page.get_by_label("queued").check()
    page.get_by_label("failed").check()
    page.locator("#pick-state").get_by_role("button", name="Apply").click()
    expect(page.locator("#pick-state summary")).to_have_text("State: queued, failed")
    expect(page).to_have_url(re.compile("state=queued&state=failed"))
    expect_names(page, ["waiting", "broken"])
    page.locator("#rows .tag", has_text="two words").click()
    expect_names(page, ["broken"])
    expect(page).to_have_url(re.compile("state=queued&state=failed"))
    expect(page.locator("#f-tag")).to_have_value(re.compile(", two words$"))
    page.fill("#f-q", "good")
    page.get_by_role("button", name="Filter", exact=True).click()
    expect(page.locator("main")).to_contain_text("No matching runs")
    page.get_by_role("link", name="Clear").click()
    expect(page).to_have_url(f"{lab.base}/runs")
    expect(page.locator("#rows tr")).to_have_count(50)


@BOTH
def test_columns_stay_in_the_address(page: Page) -> None:
    page.locator("summary", has_text="Columns").click()
    page.get_by_label("Finished").check()
    page.get_by_label("Backend").uncheck()
    page.get_by_role("group", name="Columns").get_by_role("button").click()
    page.get_by_role("link", name="Finished").click()
    expect(page).to_have_url(re.compile("tag=.*sort=finished"))
    expect(page.locator("thead")).not_to_contain_text("Backend")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Finished")


def test_pages_follow_each_other(tab: Tab, lab: Service) -> None:
    page = tab.page
    page.goto(f"{lab.base}/runs?tag=old")
    first = named(page)
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("#rows tr")).to_have_count(10)
    assert sorted(first + named(page)) == sorted(f"old {number}" for number in range(60))
    page.get_by_role("link", name="First page").click()
    expect_names(page, first)


@BOTH
def test_star_pins_in_place(page: Page, runs: dict[str, int]) -> None:
    star = page.get_by_role("button", name=f"Pin run {runs['good']}", exact=True)
    expect(star).to_have_attribute("aria-pressed", "false")
    star.focus()
    page.keyboard.press("Enter")
    expect(star).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#rows tr").first).to_contain_text("good")
    expect(page).to_have_url(re.compile("tag="))
    page.get_by_label("Pinned only").check()
    page.get_by_role("button", name="Filter", exact=True).click()
    expect_names(page, ["good"])


def test_focus_stays_on_the_star(page: Page, runs: dict[str, int]) -> None:
    address = page.url
    page.locator(f"#pin-{runs['good']}").focus()
    page.keyboard.press("Space")
    expect(page.locator("#rows tr").first).to_contain_text("good")
    assert page.evaluate("document.activeElement.id") == f"pin-{runs['good']}"
    page.keyboard.press("Space")
    expect(page.locator("#rows tr").last).to_contain_text("good")
    assert page.evaluate("document.activeElement.id") == f"pin-{runs['good']}"
    assert page.url == address


@BOTH
def test_ticked_runs_are_cancelled_and_deleted(page: Page, runs: dict[str, int]) -> None:
    for name in ("waiting", "bad"):
        page.check(box(page, runs[name]))
    question = page.get_by_role("button", name="Cancel the selected runs")
    assert not question.is_visible()
    page.locator("summary", has_text="Cancel selected").click()
    question.click()
    outcomes = page.locator("main li")
    expect(outcomes).to_have_count(2)
    expect(outcomes.filter(has_text=f"Run {runs['waiting']}:")).to_contain_text("cancel requested")
    expect(outcomes.filter(has_text=f"Run {runs['bad']}:")).to_contain_text("nothing to cancel")
    page.get_by_role("link", name="Back to the runs").click()
    expect(page.locator("#rows tr")).to_have_count(4)
    assert sorted(named(page)) == ["bad", "broken", "good", "waiting"]  # the filter is preserved
    page.check(box(page, runs["bad"]))
    page.locator("summary", has_text="Delete selected").click()
    page.get_by_role("button", name="Delete the selected runs").click()
    expect(outcomes).to_have_text([f"Run {runs['bad']}: deleted"])
    page.get_by_role("link", name="Back to the runs").click()
    expect(page.locator("#rows tr")).to_have_count(3)
    assert sorted(named(page)) == ["broken", "good", "waiting"]


def test_all_on_the_page_are_tagged_by_keyboard(page: Page, runs: dict[str, int]) -> None:
    told = page.locator("[data-ticked]")
    expect(told).to_have_text("None selected")
    page.locator("[data-tick-all]").focus()
    page.keyboard.press("Space")
    expect(told).to_have_text("4 selected")
    page.locator(box(page, runs["bad"])).focus()
    page.keyboard.press("Space")
    expect(told).to_have_text("3 selected")
    assert page.evaluate("document.querySelector('[data-tick-all]').indeterminate") is True
    page.locator("summary", has_text="Tag selected").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("by hand, quick")
    page.keyboard.press("Enter")
    outcomes = page.locator("main li")
    expect(outcomes).to_have_count(3)
    expect(outcomes.first).to_contain_text("tagged by hand, quick")
    page.get_by_role("link", name="Back to the runs").click()
    expect(page.locator("#rows .tag", has_text="by hand")).to_have_count(3)


@BOTH
def test_enter_on_a_tick_does_nothing(page: Page, runs: dict[str, int]) -> None:
    address, sent = page.url, []
    page.on("request", lambda request: sent.append(request.method))
    page.check(box(page, runs["waiting"]))
    page.keyboard.press("Enter")
    assert page.url == address
    page.reload()
    assert "POST" not in sent
    expect(page.locator(f"#run-{runs['waiting']}")).to_contain_text("queued")


def test_refresh_keeps_ticks_focus_and_question(
    page: Page, runs: dict[str, int], engine: Engine, request: pytest.FixtureRequest
) -> None:
    page.check(box(page, runs["good"]))
    page.check(box(page, runs["waiting"]))
    page.locator("summary", has_text="Delete selected").click()
    page.locator(box(page, runs["bad"])).evaluate("(element) => element.focus()")
    page.evaluate("window.sameDocument = true")
    new = add_run(engine, "running", name="new", tags=[tag_of(request.node.name)], moves=("starting",))
    with write_session(engine) as session:
        waiting = session.get_one(Run, runs["waiting"])
        waiting.state, waiting.deleting = "cancelled", True  # as while it is being deleted
        session.add(waiting)
    expect(page.locator(f"#run-{new}")).to_be_visible(timeout=8000)
    expect(page.locator(f"#run-{runs['waiting']}")).to_have_count(0)
    expect(page.locator(box(page, runs["good"]))).to_be_checked()
    expect(page.locator(box(page, new))).not_to_be_checked()
    expect(page.locator(box(page, runs["bad"]))).to_be_focused()
    expect(page.get_by_role("button", name="Delete the selected runs")).to_be_visible()
    expect(page.locator("[data-ticked]")).to_have_text("1 selected")
    assert page.evaluate("window.sameDocument") is True


def test_filters_are_set_by_keyboard_alone(page: Page) -> None:
    page.locator("#f-q").focus()
    for key in ("Tab", "Tab", "Enter", "Tab", "Space"):  # past the kinds to the states, open, first option
        page.keyboard.press(key)
    expect(page.get_by_label("queued")).to_be_checked()
    page.keyboard.press("Escape")
    expect(page.get_by_label("queued")).not_to_be_visible()
    expect(page.locator("#pick-state summary")).to_be_focused()
    page.locator("#f-q").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#pick-state summary")).to_have_text("State: queued")
    expect_names(page, ["waiting"])


NARROW = {"color_scheme": "dark", "viewport": {"width": 375, "height": 900}}


@pytest.mark.parametrize("tab", [pytest.param({}, id="wide"), pytest.param(NARROW, id="narrow-dark")], indirect=True)
def test_open_parts_are_sound(page: Page, lab: Service, runs: dict[str, int]) -> None:
    for opener in ("Kind", "State", "Verdict", "Columns", "Tag selected", "Delete selected"):
        page.locator("summary", has_text=opener).click()
        assert serious(page) == [], opener
        assert sideways(page) == 0, opener
        page.keyboard.press("Escape")
    page.locator(f"#pin-{runs['bad']}").click()
    expect(page.locator("#rows tr").first).to_contain_text("bad")
    assert serious(page) == []
    page.check(box(page, runs["good"]))
    page.get_by_role("button", name="Unpin selected").click()
    expect(page.locator("main li")).to_contain_text("nothing changed")
    assert serious(page) == []
    page.goto(f"{lab.base}/runs/{runs['good']}")
    for name in ("Rename", "Edit tags", "Add notes"):
        page.get_by_role("link", name=name).click()
    expect(page.locator("[data-editor]")).to_have_count(3)
    assert serious(page) == []
    assert sideways(page) == 0


def test_hidden_tab_asks_for_nothing(page: Page) -> None:
    page.clock.install()
    page.reload()
    page.clock.pause_at(datetime.now(UTC) + timedelta(hours=1))  # from here on the page's clock is controlled
    expect(page.locator("#rows.htmx-request")).to_have_count(0)  # else a minute of this clock cuts the request off
    page.evaluate(AWAY % "true")
    with page.expect_request("**") as first:
        page.clock.run_for(60_000)
        page.evaluate("fetch('/healthz').then((answer) => answer.status)")
    assert first.value.url.endswith("/healthz")
    page.evaluate(AWAY % "false")
    for step in (lambda: page.evaluate(CHANGED), lambda: page.clock.run_for(3_500)):  # at once, then at its next poll
        with page.expect_response("**/runs/rows*") as told:
            step()
        told.value.finished()  # the tab reports an answer that is cut off
