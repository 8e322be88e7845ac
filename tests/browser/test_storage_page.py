"""Storage in the browser: a policy shown first and applied exactly as shown, and orphans."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine

from app.clock import now
from app.db import create_database_engine, write_session
from app.runs import queue
from app.schema import migrate
from app.settings import Settings
from tests.browser.conftest import BOTH, Tab, serve
from tests.support.ended import end_run
from tests.support.keeping_data import leave_behind

pytestmark = pytest.mark.browser


@dataclass(frozen=True, kw_only=True)
class Store:
    """A service whose files a test can inspect."""

    base: str
    settings: Settings
    engine: Engine

    def end(self, *, days: float = 0, size: int = 1000, pinned: bool = False, name: str = "") -> int:
        at = now() - timedelta(days=days)
        payload = b"x" * size
        return end_run(self.engine, self.settings.runs_dir, payload=payload, pinned=pinned, finished_at=at, name=name)

    def wait(self) -> int:
        with write_session(self.engine) as session:
            return queue.number_of(queue.insert_run(session, kind="token-parity", params={"seed": 1, "world_size": 2}))

    def folder(self, run_id: int) -> Path:
        return self.settings.runs_dir / str(run_id)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A separate service per test; requested before the tab, so that it outlives requests of the page."""
    settings = Settings(data_dir=tmp_path / "data")
    migrate(settings)
    engine = create_database_engine(settings)
    for base in serve(settings.data_dir, "--no-worker"):
        yield Store(base=base, settings=settings, engine=engine)
    engine.dispose()


def plan(page: Page, base: str, **limits: str) -> None:
    page.goto(f"{base}/storage")
    for name, text in limits.items():
        page.locator(f"#r-{name}").fill(text)
    page.get_by_role("button", name="Preview").click()


def confirm(page: Page, summary: str) -> None:
    page.locator("summary", has_text=re.compile(summary)).click()
    page.get_by_role("button", name="Remove exactly these").click()


@BOTH
def test_policy_removes_what_it_showed(store: Store, tab: Tab) -> None:
    old, pinned = store.end(days=100, name="old"), store.end(days=200, pinned=True, name="kept by hand")
    young, waiting = store.end(days=1), store.wait()
    page = tab.page
    plan(page, store.base, days="90")
    assert "days=90" in page.url
    shown = page.locator("#plan tbody tr")
    expect(shown).to_have_count(1)
    expect(shown).to_contain_text("ended more than 90 days ago")
    page.locator("summary", has_text="2 runs protected from removal").click()
    expect(page.locator("#plan")).to_contain_text("kept by hand")
    expect(page.locator("#plan")).to_contain_text("has not ended: queued")
    assert store.folder(old).is_dir(), "a plan removes nothing"
    assert not page.get_by_role("button", name="Remove exactly these").is_visible()
    confirm(page, "Remove 1 run…")
    expect(page.locator("h1")).to_contain_text("1 run removed")
    assert not store.folder(old).exists()
    listed = {item["id"] for item in httpx.get(f"{store.base}/api/v1/runs").json()["items"]}
    assert listed == {pinned, young, waiting}


def test_changed_plan_removes_nothing(store: Store, tab: Tab) -> None:
    first = store.end(days=3)
    page = tab.page
    plan(page, store.base, newest="0")
    second = store.end()
    confirm(page, "Remove 1 run…")
    expect(page.get_by_role("alert")).to_contain_text("Nothing was removed")
    expect(page.get_by_role("alert")).to_contain_text("would now remove 2 runs")
    assert store.folder(first).is_dir()
    expect(page.locator("#plan tbody tr")).to_have_count(2)
    confirm(page, "Remove 2 runs…")
    expect(page.locator("h1")).to_contain_text("2 runs removed")
    assert not store.folder(first).exists()
    assert not store.folder(second).exists()
    tab.complaints.clear()  # the browser itself logs the status 409


def test_wrong_limit_is_told_beside_it(store: Store, tab: Tab) -> None:
    store.end(size=5_000_000)
    page = tab.page
    plan(page, store.base, most="much")
    expect(page.locator(".field", has=page.locator("#r-most")).locator(".error")).to_contain_text("such as 20 GiB")
    expect(page.locator("#r-most")).to_have_value("much")
    expect(page.locator("#r-most")).to_have_attribute("aria-invalid", "true")
    page.locator("#r-most").fill("4 MiB")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#plan tbody tr")).to_contain_text("at most 4194304 are kept")
    tab.complaints.clear()  # the browser itself logs the status 422


@BOTH
def test_orphans_go_as_listed(store: Store, tab: Tab) -> None:
    run_id = store.end()
    left = leave_behind(store.settings.runs_dir / "900" / "model.pt", 2_000_000)
    page = tab.page
    page.goto(f"{store.base}/storage")
    row = page.locator("#orphans tbody tr")
    expect(row).to_have_count(0)
    page.get_by_role("button", name="Find orphaned files").click()
    expect(row).to_contain_text("runs/900")
    expect(row).to_contain_text("1.9 MiB")
    expect(row).to_contain_text("no run has this number")
    another = leave_behind(store.settings.runs_dir / "901" / "model.pt", 10)
    confirm(page, "Remove 1 of them")
    expect(page.get_by_role("alert")).to_contain_text("2 orphans would be removed")
    assert left.exists()
    confirm(page, "Remove 2 of them")
    expect(page.locator("h1")).to_contain_text("2 orphans removed")
    assert not left.exists()
    assert not another.exists()
    assert store.folder(run_id).is_dir()
    tab.complaints.clear()  # the browser itself logs the status 409


def test_runs_are_listed_by_size(store: Store, tab: Tab) -> None:
    for size in range(21):
        store.end(size=1000 * (1 + size))
    page = tab.page
    page.goto(f"{store.base}/storage")
    expect(page.locator("#runs tbody tr")).to_have_count(20)
    expect(page.locator("#runs tbody th").first).to_have_text("21")
    expect(page.locator("#runs .pager")).to_contain_text("1 to 20 of 21")
    page.get_by_role("link", name="Smaller").click()
    expect(page.locator("#runs tbody th")).to_have_text(["1"])
