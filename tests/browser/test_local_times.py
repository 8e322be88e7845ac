"""Times in the viewer's zone: shown with their offset only around a change of the clock."""

import re
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine, update
from sqlmodel import col

from app.db import write_session
from app.runs.models import RunHistory
from tests.browser.conftest import Service, Tab
from tests.support.pages_data import add_run

pytestmark = pytest.mark.browser
AUTUMN: Final = (datetime(2026, 11, 1, 5, 59, 30, tzinfo=UTC), datetime(2026, 11, 1, 6, 0, 30, tzinfo=UTC))
"""A minute in which New York's clocks go from 1:59:30 to 1:00:30."""
SPRING: Final = (datetime(2026, 3, 8, 6, 59, 30, tzinfo=UTC), datetime(2026, 3, 8, 7, 0, 30, tzinfo=UTC))
"""A minute in which they go from 1:59:30 to 3:00:30."""
SUMMER: Final = (datetime(2026, 7, 1, 5, 59, 30, tzinfo=UTC), datetime(2026, 7, 1, 6, 0, 30, tzinfo=UTC))
NIGHT: Final = (datetime(2026, 7, 2, 0, 0, tzinfo=UTC), datetime(2026, 7, 2, 16, 0, tzinfo=UTC))
"""From 20:00 to 12:00 of the next day."""


def in_zone(name: str, **options: Any) -> Any:
    return pytest.param({"timezone_id": name, "locale": "en-US", **options}, id=f"{name}{options or ''}")


def timed(engine: Engine, times: tuple[datetime, datetime], name: str) -> int:
    """Record a run with these times, created as it started, with a name to filter by."""
    start, end = times
    run_id = add_run(
        engine, "succeeded", verdict="pass", name=name, started_at=start, finished_at=end, created_at=start
    )
    with write_session(engine) as session:  # the history too: the current time may have a different offset
        session.execute(update(RunHistory).where(col(RunHistory.run_id) == run_id).values(at=start))
    return run_id


def facts(page: Page) -> dict[str, str]:
    """Return the displayed facts of a run, with every kind of space as a plain one."""
    box = page.locator("#run-facts dl")
    names, values = (box.locator(tag).all_inner_texts() for tag in ("dt", "dd"))
    return {name: " ".join(value.split()) for name, value in zip(names, values, strict=True)}


@pytest.mark.parametrize("tab", [in_zone("America/New_York")], indirect=True)
@pytest.mark.parametrize(
    ("times", "told"),
    [
        (AUTUMN, ("Nov 1, 2026, 1:59:30 AM UTC−04:00", "Nov 1, 2026, 1:00:30 AM UTC−05:00 after 1 min 00 s")),
        (SPRING, ("Mar 8, 2026, 1:59:30 AM UTC−05:00", "Mar 8, 2026, 3:00:30 AM UTC−04:00 after 1 min 00 s")),
    ],
)
def test_offset_shows_where_the_clock_changed(
    tab: Tab, service: Service, engine: Engine, times: tuple[datetime, datetime], told: tuple[str, str]
) -> None:
    run_id = timed(engine, times, "changed")
    tab.page.goto(f"{service.base}/runs/{run_id}")
    found = facts(tab.page)
    assert (found["Started"], found["Finished"]) == told
    assert found["Created"].endswith(told[0][-9:])


@pytest.mark.parametrize("tab", [in_zone("America/New_York")], indirect=True)
@pytest.mark.parametrize(
    ("times", "told"),
    [
        (SUMMER, ("Jul 1, 2026, 1:59:30 AM", "Jul 1, 2026, 2:00:30 AM after 1 min 00 s")),
        (NIGHT, ("Jul 1, 2026, 8:00:00 PM", "Jul 2, 2026, 12:00:00 PM after 16 h 00 min")),
    ],
)
def test_offset_is_left_out_where_it_says_nothing(
    tab: Tab, service: Service, engine: Engine, times: tuple[datetime, datetime], told: tuple[str, str]
) -> None:
    run_id = timed(engine, times, "unchanged")
    tab.page.goto(f"{service.base}/runs/{run_id}")
    found = facts(tab.page)
    assert (found["Started"], found["Finished"]) == told


@pytest.mark.parametrize("tab", [in_zone("Asia/Tokyo")], indirect=True)
def test_zone_without_changes_shows_no_offset(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = timed(engine, AUTUMN, "far away")
    tab.page.goto(f"{service.base}/runs/{run_id}")
    assert facts(tab.page)["Finished"] == "Nov 1, 2026, 3:00:30 PM after 1 min 00 s"


@pytest.mark.parametrize("tab", [in_zone("America/New_York")], indirect=True)
def test_times_of_a_list_are_shown_together(tab: Tab, service: Service, engine: Engine) -> None:
    name = "both sides of autumn"
    timed(engine, SUMMER, name)
    page = tab.page
    address = f"{service.base}/runs?q={name.replace(' ', '+')}&col=created&col=finished&col=took"
    page.goto(address)
    rows = page.locator("#rows tr")
    expect(rows).to_have_count(1)
    expect(rows.locator("time").first).to_have_text(re.compile(r"1:59:30\sAM$"))
    timed(engine, AUTUMN, name)
    expect(rows).to_have_count(2)  # it joins the open list: the row before it changes too
    for row, texts in (
        (0, ["1:59:30 AM UTC−04:00", "1:00:30 AM UTC−05:00"]),
        (1, ["1:59:30 AM UTC−04:00", "2:00:30 AM UTC−04:00"]),
    ):
        for place, text in enumerate(texts):
            expect(rows.nth(row).locator("time").nth(place)).to_have_text(
                re.compile(text.replace(" ", r"\s").replace("+", r"\+") + "$")
            )
        expect(rows.nth(row)).to_contain_text("1 min 00 s")


@pytest.mark.parametrize("tab", [in_zone("America/New_York", java_script_enabled=False)], indirect=True)
def test_without_javascript_times_are_utc(tab: Tab, service: Service, engine: Engine) -> None:
    run_id = timed(engine, AUTUMN, "plain")
    tab.page.goto(f"{service.base}/runs/{run_id}")
    found = facts(tab.page)
    assert (found["Started"], found["Finished"]) == (
        "2026-11-01 05:59:30 UTC",
        "2026-11-01 06:00:30 UTC after 1 min 00 s",
    )
