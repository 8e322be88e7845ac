"""A registered target from the form to the diagnosis of its gradients, as a person sees it."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import ROOT, Tab, serve

pytestmark = [pytest.mark.browser, pytest.mark.torchrun]
SHOP = Path(__file__).resolve().parents[1] / "support" / "target_path"
SPECS = "shop.train:Mine,shop.gone:Target,tests.targets.table:TARGETS.rank_mean"
RUN_MS = 240_000


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{SHOP}{os.pathsep}{ROOT}")
        yield from serve(tmp_path_factory.mktemp("shop"), targets=SPECS)


def test_target_is_chosen_run_and_explained(tab: Tab, base: str) -> None:
    page = tab.page
    page.goto(f"{base}/launch")
    page.get_by_role("link", name="Gradients of your own training code").click()
    card = page.locator(".card", has_text="Your own training code")
    expect(card).to_contain_text("No module named 'shop.gone'")
    options = page.locator("#in-target option").all_inner_texts()
    assert options[:4] == ["preset: causal-lm", "shop-loop", "rank_mean", "causal-lm"]
    page.select_option("#in-target", "rank_mean")
    page.get_by_role("button", name="Start the run").click()
    expect(page).to_have_url(re.compile(r"/runs/1$"))
    expect(page.locator("#run-verdict")).to_contain_text("Verdict: fail", timeout=RUN_MS)
    expect(page.get_by_role("heading", name="Cause: rank mean")).to_be_visible()
    expect(page.locator("main")).to_contain_text("Rank 0's tokens weigh 1.222 times those of rank 1")
    expect(page.locator("main")).to_contain_text("expected 0.05")
    page.get_by_role("link", name="Launch with changes").click()
    expect(page.locator("#in-target")).to_have_value("rank_mean")
