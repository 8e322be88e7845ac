"""Every panel that can be drawn becomes an SVG and a PNG, without torch, the same bytes each time."""

import subprocess
import sys
from pathlib import Path

from PIL import Image

from app.figures.write import draw_panels, slug
from tests.support.results import every_panel
from trainer.contract.result import Line, SeriesPanel


def test_figures_are_written_and_repeatable(tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    written = draw_panels(every_panel(), folder, within=tmp_path)
    names = {path.stem for path in written}
    pictures = ["02-absolute-errors", "03-loss", "04-tokens", "05-synchronisations", "06-confusions-no-sync"]
    assert names == {*pictures, "08-first-windows"}
    assert {path.parent for path in written} == {folder}
    for path in written:
        if path.suffix == ".png":
            with Image.open(path) as picture:
                assert picture.width > 400
        else:
            assert path.read_text().lstrip().startswith("<?xml")
    before = {path: path.read_bytes() for path in written}
    assert {path: path.read_bytes() for path in draw_panels(every_panel(), folder, within=tmp_path)} == before


def test_odd_texts_and_numbers_are_drawn(tmp_path: Path) -> None:
    panel = SeriesPanel(
        title="$\\frac{1}$ <b>", x=[1, 2, 3, 4], lines=[Line(name="$x$ & y", y=["NaN", "Infinity", 1.0, 2.0])]
    )
    svg, _ = draw_panels([panel], tmp_path, within=tmp_path)
    assert "&lt;b&gt;" in svg.read_text()
    assert slug("$\\frac{1}$ <b>") == "frac-1-b"
    assert slug("…") == "panel"


def test_series_of_one_point_is_not_drawn(tmp_path: Path) -> None:
    """The page shows it as a number in a table."""
    single = SeriesPanel(title="Loss", x=[1, 2], lines=[Line(name="train", y=[0.5, "NaN"])])
    line = SeriesPanel(title="Loss", x=[1, 2], lines=[Line(name="train", y=[0.5, 0.4])])
    assert [path.suffix for path in draw_panels([single, line], tmp_path, within=tmp_path)] == [".svg", ".png"]


def test_drawing_needs_no_torch() -> None:
    code = "import sys, app.figures.write; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
