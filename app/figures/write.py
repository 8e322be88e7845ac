"""Writes every panel of a result that can be drawn as SVG and PNG."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.figure import Figure

from app.figures.draw import draw
from app.figures.style import DPI
from trainer.contract.files import write_bytes_atomically
from trainer.contract.result import Panel

FORMATS: Final = ("svg", "png")


def draw_panels(panels: Sequence[Panel], folder: Path, *, within: Path) -> list[Path]:
    """Draw the panels of a result into `folder` and return the files in order.

    `folder` is created inside `within`, which must exist. Raises OSError; FileNotFoundError if `within` is gone.
    """
    written: list[Path] = []
    # With a fixed salt the same result gives the same bytes; text stays text, and no `$` in it starts a formula.
    with mpl.rc_context({"svg.hashsalt": "ddp-audit", "svg.fonttype": "none", "text.parse_math": False}):
        for number, panel in enumerate(panels, start=1):
            figure = draw(panel)
            if figure is None:
                continue
            name = f"{number:02d}-{slug(panel.title)}"
            for kind in FORMATS:
                path = folder / f"{name}.{kind}"
                write_bytes_atomically(path, _bytes(figure, kind), within=within)
                written.append(path)
    return written


def _bytes(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    # No date in the file: each drawing would differ.
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=DPI, metadata=metadata)
    return buffer.getvalue()


def slug(title: str) -> str:
    """Return a title as a short file name of lower-case words."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "panel"
