"""Style of figures: one size and one set of colours, readable in print and for people with colour vision deficiency."""

from typing import TYPE_CHECKING, Final

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Final = ("#0a58a8", "#c2410c", "#157f5b", "#7c3aad", "#8a6d00", "#b3246e")
SIZE: Final = (7.2, 4.2)
"""Inches."""
DPI: Final = 144


def colour(index: int) -> str:
    """Return the colour of the line or group with this index."""
    return COLOURS[index % len(COLOURS)]


def new_figure(title: str, size: tuple[float, float] = SIZE) -> tuple[Figure, "Axes"]:
    """Return an empty figure with one set of axes, without a window system."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
