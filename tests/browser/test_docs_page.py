"""`/docs` in the browser: from our own files, under the policy, behind a prefix, and able to call the service."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from app.schema import migrate
from app.settings import Settings
from tests.browser.conftest import SHOTS, Tab, serve
from tests.browser.test_every_page import LOOKS, serious, sideways

pytestmark = pytest.mark.browser

SWAGGERS_OWN = (
    ("nested-interactive", "opblock-summary-control"),
    ("heading-order", "opblock-tag"),
    ("region", "information-container"),
    ("region", "scheme-container"),
)
"""Rules, and the elements of Swagger UI whose structure violates them, which our style sheets cannot change."""


@pytest.fixture(scope="module")
def prefixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("docs"))
    migrate(settings)
    for base in serve(settings.data_dir, "--no-worker", prefix="/team"):
        yield f"{base}/team"


def test_docs_show_and_try_operations(tab: Tab, prefixed: str) -> None:
    page = tab.page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{prefixed}/docs")
    expect(page.locator(".opblock").nth(30)).to_be_visible()
    operation = page.locator(".opblock", has=page.locator("[data-path='/api/v1/status']"))
    operation.locator(".opblock-summary-control").click()
    operation.get_by_role("button", name="Try it out").click()
    operation.get_by_role("button", name="Execute").click()
    answer = operation.locator(".live-responses-table tbody")
    expect(answer.locator(".response-col_status")).to_contain_text("200")
    expect(answer).to_contain_text("no_worker")
    outside = [url for url in asked if not url.startswith((prefixed, "data:"))]
    assert outside == []


@pytest.mark.parametrize("tab", LOOKS, indirect=True)
def test_docs_suit_every_look(tab: Tab, prefixed: str, request: pytest.FixtureRequest) -> None:
    page = tab.page
    page.goto(f"{prefixed}/docs")
    expect(page.locator(".opblock").nth(30)).to_be_visible()
    assert sideways(page) <= 0
    found = serious(page)
    ours = [text for text in found if not any(f" {rule}: " in text and what in text for rule, what in SWAGGERS_OWN)]
    assert ours == []
    assert len(found) > len(ours), "Swagger UI mended its own: name less"
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"docs-{request.node.callspec.id}.png")
    page.get_by_role("link", name="Back to the runs").click()
    expect(page.locator("h1")).to_contain_text("Did distributing")
