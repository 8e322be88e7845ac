"""Two roles in the browser: a wrong token is explained, viewers read, operators write, sessions end."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from app.db import create_database_engine
from app.settings import Settings
from tests.browser.conftest import Tab, serve
from tests.support.pages_data import fill

pytestmark = pytest.mark.browser

OPERATOR, VIEWER = "the-operators-token", "the-viewers-token"
PREFIX = "/team"
WRITES = "main form[method=post]:not(#classify-form) button:not(:disabled):not([data-compare])"
"""Buttons that change something: classifying a picture and comparing runs do not."""
PAGES = ("/runs", "/launch", "/compare", "/trends", "/classify", "/explain", "/storage?newest=0", "/status")
REFUSED = {"/runs/1/delete": 403, "/launch": 403, "/storage/orphans": 403, "/deliveries/1/redeliver": 403}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with both tokens, behind a path prefix, with a run of every appearance."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("guarded"))
    engine = create_database_engine(settings)
    fill(settings, engine)
    engine.dispose()
    for base in serve(settings.data_dir, "--no-worker", prefix=PREFIX, token=OPERATOR, viewer_token=VIEWER):
        yield f"{base}{PREFIX}"


def sign_in(page: Page, base: str, token: str, then: str = "/runs") -> None:
    page.goto(f"{base}{then}")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def post(page: Page, address: str) -> int:
    """Return the service's answer to a POST that one of its pages makes by script."""
    script = "(address) => fetch(address, {method: 'POST', redirect: 'manual'}).then((answer) => answer.status)"
    return int(page.evaluate(script, address))


def forget_statuses(tab: Tab, *statuses: int) -> None:
    """Drop what the browser itself logs about intended error answers."""
    meant = re.compile(f"status of ({'|'.join(map(str, statuses))}) ")
    tab.complaints[:] = [text for text in tab.complaints if not meant.search(text)]


def test_wrong_token_says_why(tab: Tab, guarded: str) -> None:
    page = tab.page
    sign_in(page, guarded, "a guess", then="/runs?verdict=fail")
    expect(page.get_by_role("alert")).to_contain_text("neither the operator's nor the viewer's")
    page.get_by_label("Token").fill(VIEWER)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{guarded}/runs?verdict=fail")
    expect(page.locator("#rows tr")).to_have_count(1)
    forget_statuses(tab, 401)


def test_viewer_looks_and_never_writes(tab: Tab, guarded: str) -> None:
    page = tab.page
    sign_in(page, guarded, VIEWER)
    for address in (*PAGES, "/runs/1", "/deliveries"):
        page.goto(f"{guarded}{address}")
        expect(page.get_by_role("button", name="Sign out (viewer)")).to_be_visible()
        expect(page.locator("h1")).not_to_contain_text("Forbidden")
        assert page.locator(WRITES).count() == 0, address
    expect(page.get_by_role("link", name="Audit log")).to_have_count(0)
    for address, status in REFUSED.items():
        assert post(page, f"{guarded}{address}") == status, address
    answer = page.goto(f"{guarded}/audit")
    assert answer is not None
    assert answer.status == 403
    expect(page.locator("main")).to_contain_text("operator's token")
    forget_statuses(tab, 403)


def test_operator_sees_what_acts(tab: Tab, guarded: str) -> None:
    page = tab.page
    sign_in(page, guarded, OPERATOR, then="/storage?newest=0")
    expect(page.get_by_role("button", name="Sign out (operator)")).to_be_visible()
    expect(page.locator("summary", has_text=re.compile(r"Remove \d+ runs?…"))).to_be_visible()
    for address in ("/runs", "/launch", "/runs/1", "/storage?newest=0"):
        page.goto(f"{guarded}{address}")
        assert page.locator(WRITES).count() > 0, address
    assert post(page, f"{guarded}/storage/orphans") == 409, (
        "the same request is accepted: so the viewer's 403 is meaningful"
    )
    page.get_by_role("link", name="Audit log").click()
    expect(page.locator("h1")).to_have_text("Audit log")
    forget_statuses(tab, 409)


def test_signing_out_ends_the_session(tab: Tab, guarded: str) -> None:
    page = tab.page
    sign_in(page, guarded, OPERATOR)
    expect(page).to_have_url(f"{guarded}/runs")
    page.get_by_role("button", name="Sign out (operator)").click()
    expect(page.get_by_label("Token")).to_be_visible()
    page.goto(f"{guarded}/storage")
    expect(page).to_have_url(re.compile(r"/login\?next="))
    assert post(page, f"{guarded}/runs/1/delete") == 401
    forget_statuses(tab, 401)


@pytest.mark.parametrize("tab", [{"java_script_enabled": False}], indirect=True)
def test_audit_log_is_filtered(tab: Tab, guarded: str) -> None:
    page = tab.page
    sign_in(page, guarded, OPERATOR, then="/audit")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_label("Action").select_option("delete")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("999")
    page.get_by_label("Run").fill("998")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("main")).to_contain_text("No matching entries")
