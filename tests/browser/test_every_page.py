"""Every page in both themes and at two widths: accessible, without sideways scrolling, without a refused script."""

import json
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import ROOT, SHOTS, Service, Tab, next_frames

pytestmark = pytest.mark.browser

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
LOOKS: list[Any] = [
    pytest.param({"color_scheme": theme, "viewport": {"width": width, "height": 1400}}, id=f"{theme}-{width}")
    for theme in ("light", "dark")
    for width in (1280, 375)
]


def addresses(runs: dict[str, int]) -> dict[str, str]:
    pages = {name: f"/runs/{run_id}" for name, run_id in runs.items()}
    return {
        "list": "/",
        "list-sorted": "/runs?sort=finished&col=verdict&col=finished&col=notes",
        "list-narrowed": "/runs?state=succeeded&state=failed&verdict=pass&tag=nightly&sort=longest",
        "run-edited": f"/runs/{runs['passed']}?edit=notes",
        "audit": "/audit",
        **pages,
        "launch": "/launch",
        "launch-cifar": "/launch?kind=cifar&param.epochs=3",
        "choose": "/compare",
        "compare": f"/compare?ids={runs['passed']},{runs['broken']}",
        "compare-cifar": f"/compare?ids={runs['passed']},{runs['cifar']}",
        "trends": "/trends",
        "trends-none": "/trends?kind=resume",
        "storage": "/storage",
        "storage-plan": "/storage?newest=1&kind=token-parity&orphans=true",
        "status": "/status",
        "deliveries": "/deliveries",
        "classify": "/classify",
        "explain": "/explain",
        "explain-answer": "/explain?guess_right=2.5&guess_wrong=2&guess_rule=means&guess_what=W",
        "login": "/login",
    }


LOOKS_RULES = ["color-contrast", "scrollable-region-focusable", "target-size", "link-in-text-block"]
"""Rules that depend on theme or width; all other rules run only once."""


def serious(page: Page, rules: list[str] | None = None) -> list[str]:
    """Return axe's findings except those of minor impact."""
    options = json.dumps({"runOnly": {"type": "rule", "values": rules}} if rules else {})
    found = page.evaluate(f"{AXE.read_text()}; axe.run({options}).then((result) => result.violations)")
    return [
        f"{item['impact']} {item['id']}: {node['html'][:160]} {node['failureSummary'][:300]}"
        for item in found
        if item["impact"] != "minor"
        for node in item["nodes"][:3]
    ]


SHIFTS = """() => new Promise((done) => {
  let sum = 0;
  const moved = [];
  const name = (node) => (node?.parentElement ?? node)?.outerHTML?.slice(0, 80);
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) {
      sum += entry.value;
      moved.push(...entry.sources.map((source) => name(source.node)));
    }
  }).observe({ type: "layout-shift", buffered: true });
  setTimeout(() => done([sum, moved]), 50);
})"""


def shifts(page: Page) -> tuple[float, list[str]]:
    """Return by how much the layout has moved since the page began, and what moved."""
    amount, moved = page.evaluate(SHIFTS)
    return float(amount), moved


def sideways(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@pytest.mark.parametrize("tab", LOOKS, indirect=True)
def test_pages_are_sound(tab: Tab, service: Service, request: pytest.FixtureRequest) -> None:
    look = request.node.callspec.id
    SHOTS.mkdir(parents=True, exist_ok=True)
    problems = {}
    for name, address in addresses(service.runs).items():
        answer = tab.page.goto(service.base + address)
        assert answer is not None
        assert answer.status == 200, address
        tab.page.wait_for_load_state("load")
        next_frames(tab.page)  # charts draw themselves after the load
        found = serious(tab.page, None if look == "light-1280" else LOOKS_RULES)
        if sideways(tab.page) > 0:
            found.append(f"scrolls {sideways(tab.page)} px sideways")
        amount, moved = shifts(tab.page)
        if amount > 0.05:
            found.append(f"the layout moved by {amount:.3f}: {moved}")
        if found:
            problems[name] = found
        tab.page.screenshot(path=SHOTS / f"{name}-{look}.png")
    assert problems == {}


def test_axe_finds_planted_fault(tab: Tab, service: Service) -> None:
    tab.page.goto(f"{service.base}/login")
    assert serious(tab.page) == []
    tab.page.evaluate("document.querySelector('main').append(document.createElement('input'))")
    assert any("label" in problem for problem in serious(tab.page))
