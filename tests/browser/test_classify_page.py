"""Classification in the browser: choose a picture, preview it, and read bars for every class with the API's numbers."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from app.db import create_database_engine
from app.inference.choose import model_path
from app.settings import Settings
from tests.browser.conftest import Tab, serve
from tests.support.inference import CLASSES, network
from tests.support.pages_data import add_run
from tests.support.pictures import encoded, photo
from trainer.common.model_file import save_model

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def with_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with one passing cifar run and its model."""
    from app.schema import migrate

    settings = Settings(data_dir=tmp_path_factory.mktemp("classify"))
    migrate(settings)
    engine = create_database_engine(settings)
    run_id = add_run(engine, "succeeded", kind="cifar", verdict="pass", reason="completed", params={"mode": "no_sync"})
    engine.dispose()
    path = model_path(settings.runs_dir, run_id, "cifar", {"mode": "no_sync"})
    path.parent.mkdir(parents=True)
    save_model(path, network(), classes=CLASSES, seed=47)
    yield from serve(settings.data_dir, "--no-worker")


@pytest.mark.parametrize("tab", [{}, {"java_script_enabled": False}], ids=["script", "plain"], indirect=True)
def test_chosen_picture_is_answered(tab: Tab, with_model: str, tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(encoded(photo()))
    upload = {"file": picture.read_bytes()}
    answer = httpx.post(f"{with_model}/api/v1/predict", files=upload, timeout=60).json()
    page = tab.page
    page.goto(f"{with_model}/classify")
    page.set_input_files("#file", picture)
    if page.evaluate("typeof htmx === 'object'"):
        expect(page.locator("[data-preview]")).to_be_visible()
    page.get_by_role("button", name="Classify", exact=True).click()
    shown = page.locator("#answer")
    expect(shown.locator("h2")).to_contain_text(answer["class"])
    expect(shown.locator("tbody tr")).to_have_count(10)
    expect(shown.locator("tbody tr").first).to_contain_text(f"{100 * answer['confidence']:.2f} %")
    expect(shown).to_contain_text("run 1")


def test_damaged_picture_says_why(tab: Tab, with_model: str, tmp_path: Path) -> None:
    damaged = tmp_path / "a.png"
    damaged.write_bytes(b"no picture at all")
    page = tab.page
    page.goto(f"{with_model}/classify?run=1")
    page.set_input_files("#file", damaged)
    page.get_by_role("button", name="Classify", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("No answer")
    tab.complaints.clear()  # the browser itself logs the status
