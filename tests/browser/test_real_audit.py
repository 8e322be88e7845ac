"""The whole path: launch from the form, watch two ranks train, read the verdict."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import README_SHOT, SHOTS, Tab, serve

pytestmark = [pytest.mark.browser, pytest.mark.torchrun]
RUN_MS = 240_000
PAGES = (
    *("/", "/launch", "/compare", "/trends", "/classify", "/explain", "/storage", "/storage?newest=0", "/status"),
    *("/deliveries", "/audit", "/docs", "/login", "/runs/1"),
)


@pytest.fixture(scope="module")
def real_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with its worker, behind a path prefix."""
    yield from serve(tmp_path_factory.mktemp("real"), prefix="/audit")


def test_launch_watch_and_read_verdict(tab: Tab, real_service: str, request: pytest.FixtureRequest) -> None:
    page, base = tab.page, f"{real_service}/audit"
    page.goto(base)
    expect(page.locator("h1")).to_contain_text("Did distributing the training change the computation?")
    page.get_by_role("link", name="All audits and their parameters").click()
    page.fill("#in-name", "first audit")
    page.get_by_role("button", name="Start the run").click()
    expect(page).to_have_url(re.compile(r"/audit/runs/1$"))
    page.evaluate("window.sameDocument = true")
    expect(page.locator("#run-ranks")).to_contain_text("Stage distributed", timeout=RUN_MS)
    expect(page.locator("#run-ranks tbody tr")).to_have_count(2, timeout=RUN_MS)
    expect(page.locator("#run-verdict")).to_contain_text("Verdict: pass", timeout=RUN_MS)
    assert page.evaluate("window.sameDocument") is True
    expect(page.locator("#checks")).to_contain_text("gradient_parity")
    expect(page.locator("#run-result")).to_contain_text("282,628")
    expect(page.locator("#run-facts")).to_contain_text("NCCL was not validated")
    live = page.locator("#log-lines .log-line").all_text_contents()
    assert any("verdict pass" in line for line in live)
    page.reload()
    assert sorted(page.locator("#log-lines .log-line").all_text_contents()) == sorted(live)
    _take_screenshots(tab, keep=bool(request.config.getoption("--keep-screenshots", default=False)))


def _take_screenshots(tab: Tab, *, keep: bool) -> None:
    tab.page.evaluate("scrollTo(0, 0)")
    SHOTS.mkdir(parents=True, exist_ok=True)
    tab.page.screenshot(path=SHOTS / "real-run.png")
    if keep:
        README_SHOT.parent.mkdir(parents=True, exist_ok=True)
        tab.page.screenshot(path=README_SHOT)


def test_no_page_leaves_the_prefix(tab: Tab, real_service: str) -> None:
    for address in PAGES:
        answer = tab.page.goto(f"{real_service}/audit{address}")
        assert answer is not None
        assert answer.status == 200, address
        found = tab.page.evaluate(
            "[...document.querySelectorAll('[href], [src], [action]')].map((item) => item.getAttribute('href')"
            " || item.getAttribute('src') || item.getAttribute('action'))"
        )
        assert [link for link in found if link.startswith("/") and not link.startswith("/audit/")] == []
