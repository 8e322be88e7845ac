"""Reads what a chart really shows: pixels of its canvas, and the data and scales of the chart library."""

from collections.abc import Sequence
from typing import Any

from playwright.sync_api import Locator, Page, expect
from sqlalchemy import Engine

from app.db import write_session
from tests.browser.conftest import Service
from tests.support.pages_data import add_events, add_metric, add_run, add_stages

STAGES = {"prepare": "succeeded", "distributed": "running", "compare": "queued"}
EXPOSE = """async () => {
  const script = document.querySelector('script[src*="js/charts.js"]');
  window.charts = await import(script.src);
}"""
COLOURED = """(holder, [name, from, to]) => {
  // How many pixels have the colour of a line, between two steps of the axis.
  const { plot } = window.charts.chartOf(holder);
  const canvas = plot.root.querySelector("canvas");
  const wanted = document.createElement("canvas").getContext("2d");
  wanted.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  wanted.fillRect(0, 0, 1, 1);
  const [red, green, blue] = wanted.getImageData(0, 0, 1, 1).data;
  const [left, right] = [from, to].map((step) => Math.round(plot.valToPos(step, "x", true)));
  const { data } = canvas.getContext("2d").getImageData(left, 0, Math.max(1, right - left), canvas.height);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) {
    const far = Math.abs(data[at] - red) + Math.abs(data[at + 1] - green) + Math.abs(data[at + 2] - blue);
    if (far < 60 && data[at + 3] > 120) found += 1;
  }
  return found;
}"""


def a_run(engine: Engine, state: str = "succeeded") -> int:
    run_id = add_run(engine, state, moves=("starting",))
    add_stages(engine, run_id, STAGES)
    return run_id


def measure(
    engine: Engine, run_id: int, rank: int, values: Sequence[float], *, key: str = "loss", steps: Sequence[float] = ()
) -> None:
    with write_session(engine) as session:
        add_metric(session, run_id, "distributed", rank, values, key=key, steps=steps)
        add_events(session, run_id, "distributed", [{"type": "metrics", "step": 0, "values": {key: 0.0}}])


def falling(count: int, rank: int = 0) -> list[float]:
    return [1.5 - step / count - 0.1 * rank for step in range(count)]


def chart(page: Page, service: Service, run_id: int, key: str = "loss", query: str = "") -> Locator:
    """Open the page of a run and return the chart of a metric."""
    return chart_on(page, f"{service.base}/runs/{run_id}{query}#metrics", key)


def chart_on(page: Page, address: str, key: str) -> Locator:
    """Open a page and return its chart of a metric."""
    page.goto(address)
    holder = page.locator("#metrics figure", has=page.get_by_role("heading", name=key, exact=True)).locator(".chart")
    expect(holder.locator("canvas")).to_have_count(1)
    page.evaluate(EXPOSE)
    holder.scroll_into_view_if_needed()
    return holder


def plot(holder: Locator, what: str) -> Any:
    """Return a value of the chart library's own object."""
    return holder.evaluate(f"(holder) => {{ const plot = window.charts.chartOf(holder).plot; return {what}; }}")


def visible(holder: Locator) -> tuple[float, float]:
    low, high = plot(holder, "[plot.scales.x.min, plot.scales.x.max]")
    return float(low), float(high)


def drag(page: Page, holder: Locator, start: float, end: float) -> None:
    """Drag over a part of the drawing, given in shares of its width."""
    box = holder.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + start * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()


def hover(page: Page, holder: Locator, step: float) -> None:
    left = plot(holder, f"plot.valToPos({step}, 'x')")
    box = holder.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + left, box["y"] + box["height"] / 2)


def coloured(holder: Locator, line: int, start: float, end: float) -> int:
    return int(holder.evaluate(COLOURED, [f"--c{line}", start, end]))
