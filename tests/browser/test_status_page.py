"""The status page shows why runs cannot start, and when they can."""

import pytest
from playwright.sync_api import expect

from app.db import create_database_engine
from tests.browser.conftest import Service, Tab
from tests.support.keeping_data import add_worker

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("tab", [{"java_script_enabled": False}], indirect=True)
def test_status_says_why_nothing_starts(tab: Tab, service: Service) -> None:
    page = tab.page
    page.goto(f"{service.base}/status")
    expect(page.locator(".banner h2")).to_have_text("Not ready")
    expect(page.locator(".banner")).to_contain_text("no_worker")
    expect(page.locator("#workers tbody tr")).to_contain_text("silent")
    expect(page.locator("#workers tbody tr")).to_contain_text("2.14.1")
    waiting = page.locator("#queue tbody tr", has=page.get_by_role("link", name=str(service.runs["queued"])))
    expect(waiting).to_contain_text("MAX_CPU_RUNS is 1")
    engine = create_database_engine(service.settings)
    add_worker(engine, id="fresh")
    engine.dispose()
    page.reload()
    expect(page.locator(".banner h2")).to_have_text("Ready")
    expect(page.locator("#workers tbody tr").first).to_contain_text("✓ fresh")
