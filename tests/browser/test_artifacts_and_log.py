"""Files of a run with their previews, the reproduce command, and the log viewer with omitted lines."""

from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect
from sqlalchemy import Engine

from app.db import write_session
from tests.browser.conftest import OFF, Service, Tab
from tests.support.pages_data import HOSTILE, add_events, add_run, add_stages, write_log
from trainer.contract.paths import RunPaths

pytestmark = pytest.mark.browser
STAGES = {"prepare": "succeeded", "distributed": "running", "compare": "queued"}
MANY = 50_000
CLIPBOARD = pytest.mark.parametrize("tab", [{"permissions": ["clipboard-read", "clipboard-write"]}], indirect=True)


@pytest.fixture
def run_id(engine: Engine) -> int:
    made = add_run(engine, "running", moves=("starting",))
    add_stages(engine, made, STAGES)
    return made


def folder(service: Service, run_id: int) -> Path:
    path = RunPaths(service.settings.runs_dir / str(run_id)).artifacts
    path.mkdir(parents=True)
    return path


def opened(page: Page, name: str) -> Locator:
    """Open the preview of a file and return its element."""
    file = page.locator("#files details", has=page.locator("summary", has_text=name))
    file.locator("summary").click()
    return file


def test_files_are_shown_for_what_they_are(tab: Tab, service: Service, run_id: int) -> None:
    files = folder(service, run_id)
    Image.new("RGB", (40, 30), (200, 30, 30)).save(files / "a picture.png")
    (files / "numbers.json").write_text('{"a":{"b":[1,2]},"text":"' + HOSTILE.replace('"', "'") + '"}')
    (files / "table.csv").write_text("step,loss\n0,1.5\n1,0.75\n")
    (files / "long.txt").write_text(f"{HOSTILE}\n" * 4000)
    (files / "model.pt").write_bytes(b"\0" * 3000)
    page = tab.page
    page.goto(f"{service.base}/runs/{run_id}#files")
    picture = opened(page, "a picture.png").locator("img")
    expect(picture).to_be_visible()
    page.wait_for_function("(image) => image.naturalWidth === 40", arg=picture.element_handle())
    numbers = opened(page, "numbers.json")
    expect(numbers.locator("pre")).to_contain_text('"b": [\n')
    expect(numbers.locator("pre")).to_contain_text(HOSTILE)
    table = opened(page, "table.csv")
    expect(table.locator("thead th")).to_have_text(["step", "loss"])
    expect(table.locator("tbody tr")).to_have_count(2)
    long = opened(page, "long.txt")
    expect(long).to_contain_text(f"The first 200,000 of {4000 * (len(HOSTILE) + 1):,} bytes.")
    expect(long.locator("pre")).to_contain_text(HOSTILE)
    model = opened(page, "model.pt")
    expect(model).to_contain_text("Files of this type are not shown here.")
    expect(model.get_by_role("link")).to_have_text(["Download"])
    assert page.locator("#files pre img, #files pre script").count() == 0
    with page.expect_download() as download:
        model.get_by_role("link", name="Download").click()
    assert download.value.path().read_bytes() == b"\0" * 3000


@OFF
def test_files_open_without_script(tab: Tab, service: Service, run_id: int) -> None:
    (folder(service, run_id) / "notes.txt").write_text("plain")
    tab.page.goto(f"{service.base}/runs/{run_id}#files")
    file = opened(tab.page, "notes.txt")
    file.get_by_role("link", name="Open").click()
    expect(tab.page.locator("body")).to_have_text("plain")
    tab.page.wait_for_load_state("networkidle")
    tab.complaints.clear()  # a plain file names no icon, so the browser requests one


@CLIPBOARD
def test_reproduce_command_is_copied(tab: Tab, service: Service, run_id: int) -> None:
    page = tab.page
    page.goto(f"{service.base}/runs/{run_id}#parameters")
    command = page.locator("#reproduce").inner_text()
    assert "ddp-audit" in command
    page.locator("[data-copy=reproduce]").click()
    expect(page.locator("[data-copy=reproduce]")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == command


def texts(page: Page) -> list[str]:
    return page.locator("#log-lines .log-line:visible .log-text").all_inner_texts()


def test_output_of_terminals_reads_cleanly(tab: Tab, service: Service, run_id: int) -> None:
    page = tab.page
    write_log(service.settings, run_id, "distributed", 0, "\x1b[32mgreen\x1b[0m\n 1 %\r 99 %\n")
    page.goto(f"{service.base}/runs/{run_id}#log")
    assert texts(page) == ["green", " 99 %"]
    write_log(service.settings, run_id, "distributed", 0, f"\x1b[1m{HOSTILE}\x1b[0m\n10 %\r\x1b[Kdone\n")
    expect(page.locator("#log-lines")).to_contain_text("done")
    assert texts(page) == ["green", " 99 %", HOSTILE, "done"]
    assert page.locator("#log-lines img").count() == 0


def test_log_tells_how_much_there_is(tab: Tab, service: Service, engine: Engine, run_id: int) -> None:
    page = tab.page
    count = page.locator("[data-log-count]")
    write_log(service.settings, run_id, "distributed", 0, "short\n")
    write_log(service.settings, run_id, "distributed", 1, "".join(f"row {row}\n" for row in range(MANY)))
    with write_session(engine) as session:
        said = [{"type": "message", "level": "info", "text": f"said {number}"} for number in range(500)]
        add_events(session, run_id, "distributed", said)
    page.goto(f"{service.base}/runs/{run_id}#log")
    expect(count).to_have_text("Last 601 of 50,501 lines.")
    expect(page.locator("#log-lines")).to_contain_text("100 lines before this one are not shown")
    assert len(texts(page)) == 601 + 2  # and two notes that represent the rest
    write_log(service.settings, run_id, "distributed", 0, "one more\n")
    expect(count).to_have_text("Last 602 of 50,502 lines.")
    write_log(service.settings, run_id, "distributed", 1, "y" * 99 + "\n" + ("x" * 99 + "\n") * 19_999)
    expect(count).to_contain_text("of 70,502 lines.")
    page.goto(f"{service.base}/runs/{run_id}?rank=0&stream=stdout#log")
    expect(count).to_have_text("Last 2 of 2 lines.")


def test_text_is_found_and_marked(tab: Tab, service: Service, run_id: int) -> None:
    page = tab.page
    write_log(service.settings, run_id, "distributed", 0, "one Needle\nhay\nneedle needle\n")
    page.goto(f"{service.base}/runs/{run_id}#log")
    page.fill("[data-log-find]", "NEEDLE")
    assert texts(page) == ["one Needle", "needle needle"]
    expect(page.locator("[data-log-count]")).to_have_text("Last 3 of 3 lines. 2 of those here have that text.")
    marked = "[...CSS.highlights.get('found')].map((range) => range.toString())"
    assert page.evaluate(marked) == ["Needle", "needle", "needle"]
    write_log(service.settings, run_id, "distributed", 0, "more hay\nlast needle\n")
    expect(page.locator("#log-lines")).to_contain_text("last needle")
    assert texts(page)[-1] == "last needle"
    assert "more hay" not in texts(page)
    page.press("[data-log-find]", "Enter")  # searches; it does not submit the filters
    page.fill("[data-log-find]", "")
    assert len(texts(page)) == 5
    assert page.evaluate(marked) == []


def test_scrolling_up_stops_following(tab: Tab, service: Service, run_id: int) -> None:
    page = tab.page
    write_log(service.settings, run_id, "distributed", 0, "".join(f"row {row}\n" for row in range(200)))
    page.goto(f"{service.base}/runs/{run_id}#log")
    follow, box = page.get_by_label("Follow"), page.locator("#log-lines")
    at_end = "(box) => box.scrollHeight - box.scrollTop - box.clientHeight < 5"
    assert box.evaluate(at_end)
    expect(follow).to_be_checked()
    box.evaluate("(box) => { box.scrollTop = 300; }")
    expect(follow).not_to_be_checked()
    write_log(service.settings, run_id, "distributed", 0, "".join(f"new {row}\n" for row in range(300)))
    expect(box).to_contain_text("new 299")
    assert box.evaluate("(box) => box.scrollTop") == 300
    expect(follow).not_to_be_checked()
    box.evaluate("(box) => { box.scrollTop = box.scrollHeight; }")
    expect(follow).to_be_checked()
    write_log(service.settings, run_id, "distributed", 0, "the very last\n")
    expect(box).to_contain_text("the very last")
    assert box.evaluate(at_end)
    box.evaluate("(box) => { box.scrollTop = 0; }")
    expect(follow).not_to_be_checked()
    follow.check()
    assert box.evaluate(at_end)


def test_flood_leaves_page_usable(tab: Tab, service: Service, run_id: int) -> None:
    page = tab.page
    write_log(service.settings, run_id, "distributed", 0, "first\n")
    page.goto(f"{service.base}/runs/{run_id}#log")
    expect(page.locator("#log-lines")).to_contain_text("first")
    for start in range(0, MANY, 5000):
        rows = "".join(f"row {row} of a flood of lines\n" for row in range(start, start + 5000))
        write_log(service.settings, run_id, "distributed", 0, rows)
        expect(page.locator("[data-log-count]")).not_to_contain_text("of 1 lines")  # arrives while more is written
    expect(page.locator("[data-log-count]")).to_contain_text(f"of {MANY + 1:,} lines", timeout=30_000)
    assert 500 <= page.locator("#log-lines .log-line").count() <= 3000
    assert texts(page)[-1] == f"row {MANY - 1} of a flood of lines"
    page.fill("[data-log-find]", f"row {MANY - 1} ")
    expect(page.locator("#log-lines .log-line:visible")).to_have_count(1)
    assert page.locator("#log-lines .log-line:visible").inner_text().endswith(f"row {MANY - 1} of a flood of lines")
