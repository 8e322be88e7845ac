"""Writes every panel of a result that can be drawn as SVG and PNG."""

import io
import re
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.figure import Figure

from app.figures.draw import draw
from app.figures.style import DPI
from trainer.contract.files import write_bytes_atomically
from trainer.contract.paths import RunPaths
from trainer.contract.result import Result

FORMATS: Final = ("svg", "png")


def write_figures(paths: RunPaths) -> list[Path]:
    """Draw the run's result into `artifacts/figures`. Raises OSError or ValueError when there is no readable result."""
    return draw_result(Result.load(paths.result), paths.artifacts / "figures")


def draw_result(result: Result, folder: Path) -> list[Path]:
    """Draw the result into `folder` and return the files, in the order of the panels. Raises OSError."""
    written: list[Path] = []
    # With a fixed salt the same result gives the same bytes; text stays text, and no `$` in it starts a formula.
    with mpl.rc_context({"svg.hashsalt": "ddp-audit", "svg.fonttype": "none", "text.parse_math": False}):
        for number, panel in enumerate(result.panels, start=1):
            figure = draw(panel)
            if figure is None:
                continue
            name = f"{number:02d}-{slug(panel.title)}"
            for kind in FORMATS:
                path = folder / f"{name}.{kind}"
                write_bytes_atomically(path, _bytes(figure, kind))
                written.append(path)
    return written


def _bytes(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    # No date in the file: it would differ from one drawing to the next.
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=DPI, metadata=metadata)
    return buffer.getvalue()


def slug(title: str) -> str:
    """Return a title as a short file name of lower-case words."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "panel"
