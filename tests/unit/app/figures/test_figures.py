"""Every panel that can be drawn becomes an SVG and a PNG, without torch, the same bytes each time."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from app.figures.write import slug, write_figures
from tests.support.results import every_panel, make_result
from trainer.contract.paths import RunPaths
from trainer.contract.result import Line, SeriesPanel


def test_figures_are_written_and_repeatable(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    make_result(panels=every_panel()).save(paths.result)
    written = write_figures(paths)
    names = {path.stem for path in written}
    assert names == {"02-absolute-errors", "03-loss", "04-tokens", "05-synchronisations", "06-confusions-no-sync"}
    assert {path.parent for path in written} == {paths.artifacts / "figures"}
    for path in written:
        if path.suffix == ".png":
            with Image.open(path) as picture:
                assert picture.width > 400
        else:
            assert path.read_text().lstrip().startswith("<?xml")
    before = {path: path.read_bytes() for path in written}
    assert {path: path.read_bytes() for path in write_figures(paths)} == before


def test_odd_texts_and_numbers_are_drawn(tmp_path: Path) -> None:
    panel = SeriesPanel(title="$\\frac{1}$ <b>", x=[1, 2], lines=[Line(name="$x$ & y", y=["NaN", "Infinity"])])
    make_result(panels=[panel]).save(RunPaths(tmp_path).result)
    svg, _ = write_figures(RunPaths(tmp_path))
    assert "&lt;b&gt;" in svg.read_text()
    assert slug("$\\frac{1}$ <b>") == "frac-1-b"
    assert slug("…") == "panel"


def test_missing_result_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_figures(RunPaths(tmp_path))


def test_drawing_needs_no_torch() -> None:
    code = "import sys, app.figures.write; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
