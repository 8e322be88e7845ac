"""Exports in a browser: a click on the list or on a run downloads a file, with and without JavaScript."""

import csv
import json
from pathlib import Path

import pytest

from tests.browser.conftest import BOTH, Service, Tab

parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.browser


def saved(tab: Tab, link: str, folder: Path) -> Path:
    """Click a link and return the downloaded file, under its suggested name."""
    with tab.page.expect_download() as waiting:
        tab.page.get_by_role("link", name=link, exact=True).click()
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


@BOTH
def test_list_is_saved_as_it_is_narrowed(service: Service, tab: Tab, tmp_path: Path) -> None:
    tab.page.goto(f"{service.base}/runs?state=succeeded&sort=oldest")
    path = saved(tab, "Runs as CSV", tmp_path)
    assert path.name == "runs.csv"
    with path.open(newline="") as handle:
        numbers = [int(row["id"]) for row in csv.DictReader(handle)]
    ended = {service.runs[name] for name in ("passed", "broken", "cifar")}  # other tests may have added runs
    assert numbers == sorted(numbers)
    assert ended <= set(numbers)
    assert service.runs["failed"] not in numbers
    checks = parquet.read_table(saved(tab, "Checks as Parquet", tmp_path))
    assert ended <= set(checks["run_id"].to_pylist()) <= set(numbers)


@BOTH
def test_run_is_saved_table_by_table(service: Service, tab: Tab, tmp_path: Path) -> None:
    number = service.runs["passed"]
    tab.page.goto(f"{service.base}/runs/{number}#files")
    path = saved(tab, "Checks as CSV", tmp_path)
    assert path.name == f"run-{number}-checks.csv"
    assert "gradient_parity" in path.read_text()
    assert parquet.read_table(saved(tab, "Resources as Parquet", tmp_path)).num_rows == 8
    assert json.loads(saved(tab, "Run as JSON", tmp_path).read_text())["run"]["id"] == number
