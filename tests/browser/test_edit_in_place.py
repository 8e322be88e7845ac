"""Name, tags, notes and pin of a run, changed where they are shown: by keyboard, by mouse, and without JavaScript."""

import re

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine

from app.db import read_session
from app.runs.editing import edit_run, read_changes
from app.runs.store import get_run_document
from tests.browser.conftest import BOTH, OFF, Held, Service, Tab, next_frames
from tests.browser.test_every_page import shifts
from tests.support.pages_data import HOSTILE, add_run

pytestmark = pytest.mark.browser


@pytest.fixture
def run_id(engine: Engine) -> int:
    return add_run(engine, "lost", name="before", tags=["b", "a,c"], notes="first\nsecond")


@pytest.fixture
def page(tab: Tab, service: Service, run_id: int) -> Page:
    tab.page.goto(f"{service.base}/runs/{run_id}")
    return tab.page


def stored(engine: Engine, run_id: int, name: str) -> object:
    with read_session(engine) as session:
        return get_run_document(session, run_id)[name]


@BOTH
def test_name_is_changed_by_keyboard(page: Page, engine: Engine, run_id: int) -> None:
    page.get_by_role("link", name="Rename").focus()
    page.keyboard.press("Enter")
    field = page.get_by_label("Name", exact=True)
    expect(field).to_be_focused()
    field.fill(HOSTILE)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(f"Run {run_id} · {HOSTILE}")
    assert page.locator("h1 img, h1 script").count() == 0
    assert stored(engine, run_id, "name") == HOSTILE


@BOTH
def test_tags_are_changed_in_one_field(page: Page, engine: Engine, run_id: int) -> None:
    page.get_by_role("link", name="Edit tags").click()
    field = page.get_by_label("Tags, separated by commas")
    expect(field).to_have_value('"a,c", b')
    field.fill('"a,c", <b>, new')
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#label-tags .tag")).to_have_text(["<b>", "a,c", "new"])
    assert stored(engine, run_id, "tags") == ["<b>", "a,c", "new"]
    page.locator("#label-tags .tag", has_text="a,c").click()
    expect(page.locator("#f-tag")).to_have_value('"a,c"')
    expect(page.locator(f"#run-{run_id}")).to_contain_text("before")


@BOTH
def test_notes_are_changed_and_taken_away(page: Page, engine: Engine, run_id: int) -> None:
    page.get_by_role("link", name="Edit notes").click()
    page.get_by_role("textbox", name="Notes").fill(f"{HOSTILE}\n\n  third")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#label-notes .notes")).to_have_text(f"{HOSTILE}\n\n  third", use_inner_text=True)
    assert stored(engine, run_id, "notes") == f"{HOSTILE}\n\n  third"
    page.get_by_role("link", name="Edit notes").click()
    page.get_by_role("textbox", name="Notes").fill("")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("link", name="Add notes")).to_be_visible()
    assert stored(engine, run_id, "notes") == ""


@BOTH
def test_pin_is_a_switch(page: Page, engine: Engine, run_id: int) -> None:
    pin = page.get_by_role("button", name="Pin", exact=True)
    expect(pin).to_have_attribute("aria-pressed", "false")
    pin.focus()
    page.keyboard.press("Enter")
    expect(pin).to_have_attribute("aria-pressed", "true")
    assert stored(engine, run_id, "pinned") is True
    pin.focus()
    page.keyboard.press("Enter")
    expect(pin).to_have_attribute("aria-pressed", "false")
    assert stored(engine, run_id, "pinned") is False


def test_escape_goes_back_and_changes_nothing(page: Page, engine: Engine, run_id: int) -> None:
    page.evaluate("window.sameDocument = true")
    page.locator("h1").click()  # the text itself opens its field
    field = page.get_by_label("Name", exact=True)
    expect(field).to_be_focused()
    assert page.evaluate("getSelection().toString()") == "before"  # typing replaces it
    field.fill("typed")
    page.keyboard.press("Escape")
    expect(page.locator("h1")).to_have_text(f"Run {run_id} · before")
    expect(page.get_by_role("link", name="Rename")).to_be_focused()
    page.keyboard.press("Enter")
    expect(field).to_have_value("before")
    page.get_by_role("link", name="Cancel").click()
    expect(page.locator("h1")).to_have_text(f"Run {run_id} · before")
    assert page.evaluate("window.sameDocument") is True
    assert stored(engine, run_id, "name") == "before"


def test_notes_typed_before_escape_come_back(page: Page, engine: Engine, run_id: int) -> None:
    field = page.get_by_role("textbox", name="Notes")
    page.get_by_role("link", name="Edit notes").click()
    field.fill("a long thought")
    page.keyboard.press("Escape")
    expect(page.locator("#label-notes .notes")).to_have_text("first\nsecond", use_inner_text=True)
    page.get_by_role("link", name="Edit notes").click()
    expect(field).to_have_value("a long thought")
    page.keyboard.press("Enter")
    expect(field).to_have_value("a long thought\n")  # Enter is a line, not the end
    page.keyboard.press("Control+Enter")
    expect(page.locator("#label-notes .notes")).to_contain_text("a long thought")
    assert stored(engine, run_id, "notes") == "a long thought\n"
    edit_run(engine, run_id, read_changes({"notes": "written elsewhere"}), actor="test")
    page.get_by_role("link", name="Edit notes").click()
    expect(field).to_have_value("written elsewhere")  # saved text is no longer a draft


def test_place_on_the_page_is_kept(page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 400})
    page.evaluate("window.scrollTo(0, 60)")
    page.get_by_role("link", name="Edit notes").click()
    page.get_by_role("textbox", name="Notes").fill("new")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#label-notes .notes")).to_have_text("new")
    assert page.evaluate("window.scrollY") == 60
    expect(page.get_by_role("link", name="Edit notes")).to_be_focused()


@BOTH
def test_refusal_stands_at_the_field(tab: Tab, page: Page, engine: Engine, run_id: int) -> None:
    page.get_by_role("link", name="Rename").click()
    field = page.get_by_label("Name", exact=True)
    field.fill("x" * 201)
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("at most 200 characters")
    expect(field).to_have_value("x" * 201)
    expect(field).to_be_focused()
    tab.complaints.clear()  # the browser itself logs the status 422
    field.fill("short")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(f"Run {run_id} · short")


def test_live_page_keeps_an_open_field(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = add_run(engine, "running", name="live", tags=["kept"], moves=("starting",))
    page = tab.page
    page.goto(f"{service.base}/runs/{run_id}")
    page.get_by_role("link", name="Rename").click()
    field = page.get_by_label("Name", exact=True)
    field.fill("half a na")
    edit_run(engine, run_id, read_changes({"pinned": True, "tags": ["kept", "new"]}), actor="test")
    expect(page.locator("#label-tags .tag")).to_have_text(["kept", "new"])  # the stream has re-rendered the head
    expect(page.get_by_role("button", name="Pin", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(field).to_be_focused()
    page.keyboard.type("me")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(f"Run {run_id} · half a name")


def test_other_tabs_see_the_change(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = add_run(engine, "running", name="live", moves=("starting",))
    other = tab.page.context.new_page()
    for page in (tab.page, other):
        page.goto(f"{service.base}/runs/{run_id}")
    tab.page.get_by_role("link", name="Rename").click()
    tab.page.get_by_label("Name", exact=True).fill("seen elsewhere")
    tab.page.keyboard.press("Enter")
    expect(other.locator("h1")).to_have_text(f"Run {run_id} · seen elsewhere")


@OFF
def test_cancel_is_a_link_without_script(page: Page, engine: Engine, run_id: int) -> None:
    address = page.url
    page.get_by_role("link", name="Rename").click()
    expect(page).to_have_url(f"{address}?edit=name")
    page.get_by_role("link", name="Cancel").click()
    expect(page).to_have_url(address)
    expect(page.locator("h1")).to_have_text(f"Run {run_id} · before")


LATE = re.compile(r"/static/js/(?!sections\.)")
"""Every script except the one that a page needs before it is drawn."""


@pytest.mark.parametrize(
    "tab", [pytest.param({"viewport": {"width": 375, "height": 1400}}, id="narrow")], indirect=True
)
def test_late_scripts_move_nothing(tab: Tab, service: Service, run_id: int) -> None:
    for address in ("/runs", f"/runs/{run_id}"):
        held = Held(tab.page, LATE)
        tab.page.goto(service.base + address, wait_until="commit")
        tab.page.wait_for_selector("footer", state="attached")
        next_frames(tab.page)  # the page is drawn before its scripts have loaded
        assert held.routes
        held.let_go()
        tab.page.wait_for_load_state("load")
        next_frames(tab.page)
        amount, moved = shifts(tab.page)
        assert amount < 0.005, (address, moved)
