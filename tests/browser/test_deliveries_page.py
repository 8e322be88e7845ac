"""The delivery log in the browser, with a real receiver: its answers, and sending again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from app.schema import migrate
from app.settings import Settings
from tests.browser.conftest import Tab, serve
from tests.support.receiver import Receiver, listening
from tests.support.waiting import until

pytestmark = pytest.mark.browser


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with listening() as found:
        yield found


@pytest.fixture
def told(tmp_path: Path, receiver: Receiver) -> Iterator[str]:
    """A service that notifies the receiver; requested before the tab, so that it outlives requests of the page."""
    settings = Settings(data_dir=tmp_path)
    migrate(settings)
    yield from serve(tmp_path, "--no-worker", webhook_url=receiver.url, webhook_secret="shared")


def attempts(told: str) -> list[Any]:
    """Return the audit entry of sending the first delivery again."""
    (item,) = httpx.get(f"{told}/api/v1/webhooks/deliveries").json()["items"]
    recorded: list[Any] = item["attempts"]
    return recorded


def test_failed_delivery_is_sent_again(told: str, receiver: Receiver, tab: Tab) -> None:
    receiver.answers = [500]
    run_id = httpx.post(f"{told}/api/v1/runs", json={"kind": "token-parity"}).json()["id"]
    httpx.post(f"{told}/api/v1/runs/{run_id}/cancel").raise_for_status()
    page = tab.page
    page.goto(told)
    page.get_by_role("link", name="Deliveries").click()
    row = page.locator("#delivery-1")
    expect(row).to_contain_text("cancelled")
    until(lambda: len(attempts(told)) == 1, "the first attempt")
    page.reload()
    expect(row).to_contain_text("the receiver answered 500")
    expect(row).to_contain_text("pending")
    row.get_by_role("button", name="Send again").click()
    expect(page).to_have_url(f"{told}/deliveries?run={run_id}")
    until(lambda: len(attempts(told)) == 2, "the second attempt")
    page.reload()
    expect(row).to_contain_text("delivered")
    expect(row.locator("ol li")).to_have_count(2)
    assert {json.loads(body)["delivery"] for _headers, body in receiver.received} == {1}
    assert receiver.url not in page.content()
    page.goto(f"{told}/runs/{run_id}")
    expect(page.locator("#notice")).to_contain_text("delivered")


def test_deliveries_are_filtered(told: str, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{told}/deliveries?run=17&status=failed")
    expect(page.get_by_label("Run")).to_have_value("17")
    expect(page.get_by_label("Status")).to_have_value("failed")
    expect(page.locator("main")).to_contain_text("No matching deliveries")
