"""Launch form, worked example, labels and comparison, as a person uses them."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Service, Tab
from tests.support.pages_data import HOSTILE

pytestmark = pytest.mark.browser


def test_refused_launch_keeps_what_was_typed(tab: Tab, service: Service) -> None:
    page = tab.page
    page.goto(f"{service.base}/launch")
    page.locator("summary", has_text="All parameters").click()
    page.fill("#in-updates", "0")
    page.fill("#in-seed", "many")
    page.fill("#in-name", HOSTILE)
    page.get_by_role("button", name="Start the run").click()
    expect(page.get_by_role("alert")).to_contain_text("2 fields need a different value")
    field = page.locator(".field", has=page.locator("#in-updates"))
    expect(field.locator(".error")).to_contain_text("at least 1")
    expect(page.locator("#in-seed")).to_have_value("many")
    expect(page.locator("#in-name")).to_have_value(HOSTILE)
    expect(page.locator("#in-updates")).to_have_attribute("aria-invalid", "true")
    tab.complaints.clear()  # the browser itself logs the status 422


def test_launch_records_run_and_says_why_it_waits(tab: Tab, service: Service) -> None:
    page = tab.page
    page.goto(f"{service.base}/launch")
    page.locator("summary", has_text="All parameters").click()
    page.fill("#in-seed", "11")
    page.get_by_text("full", exact=True).click()
    expect(page.locator("#hint-updates")).to_contain_text("Preset: 100")
    expect(page.locator("#in-seed")).to_have_value("11")
    page.fill("#in-tags", "one, two")
    page.get_by_role("button", name="Start the run").click()
    expect(page).to_have_url(re.compile(r"/runs/\d+$"))
    expect(page.locator("#run-verdict")).to_contain_text("Waiting, position")
    expect(page.locator("#reproduce")).to_have_text("ddp-audit run token-parity --preset full -p seed=11")
    expect(page.locator("#run-head")).to_contain_text("two")
    page.locator("summary", has_text="Cancel…").click()
    page.get_by_role("button", name="Cancel run").click()
    expect(page.locator("#run-head")).to_contain_text("cancelled")


def test_worked_example_follows_every_key(tab: Tab, service: Service) -> None:
    page = tab.page
    page.goto(f"{service.base}/explain?guess_right=2.5&guess_wrong=2")
    expect(page.locator("[data-out=right]")).to_have_text("2.5")
    for field, value in {"n10": "6", "n11": "6", "s10": "18", "s11": "18"}.items():
        page.fill(f"input[name={field}]", value)
    expect(page.locator("[data-out=right]")).to_have_text("2")
    expect(page.locator("[data-out=wrong]")).to_have_text("2")
    for field in ("n00", "n01", "n10", "n11"):
        page.fill(f"input[name={field}]", "0")
    expect(page.locator("[data-problem]")).to_contain_text("global token count 0")


def test_ticked_runs_are_compared(tab: Tab, service: Service) -> None:
    page = tab.page
    page.goto(f"{service.base}/runs?kind=token-parity&sort=oldest")
    for name in ("passed", "broken"):
        page.check(f"input[name=run][value='{service.runs[name]}']")
    page.get_by_role("button", name="Compare selected").click()
    expect(page.locator("h1")).to_contain_text("side by side")
    differing = page.get_by_role("region", name="Parameters that differ")
    expect(differing.locator("tbody tr")).to_have_count(1)
    expect(differing).to_contain_text("seed")
    expect(page.locator("#markdown")).to_contain_text("gradient_parity")
