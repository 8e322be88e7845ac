"""One drawing function per type of panel: takes a panel, returns a matplotlib figure."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from matplotlib.figure import Figure

from app.figures.style import colour, new_figure
from trainer.contract.events import decode_number
from trainer.contract.result import (
    BarsPanel,
    ConfusionPanel,
    HeatPanel,
    HistogramPanel,
    Panel,
    SeriesPanel,
    TimelinePanel,
)
from trainer.contract.strict import Number


def floats(values: Sequence[Number]) -> list[float]:
    """Return numbers as floats; null becomes NaN, which is drawn as a gap."""
    return [math.nan if value is None else float(decode_number(value) or 0.0) for value in values]


def series(panel: SeriesPanel) -> Figure:
    """Draw lines over x, with gaps at values that are not finite."""
    figure, axes = new_figure(panel.title)
    for index, line in enumerate(panel.lines):
        ys = [value if math.isfinite(value) else math.nan for value in floats(line.y)]
        axes.plot(floats(panel.x), ys, color=colour(index), label=line.name, marker="." if len(ys) < 30 else "")
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.grid(alpha=0.3)
    if panel.lines:
        axes.legend(frameon=False)
    return figure


def histogram(panel: HistogramPanel) -> Figure:
    """Draw counts per bin, groups side by side; equal widths on a logarithmic axis, because its first edge may be 0."""
    figure, axes = new_figure(panel.title)
    bins = len(panel.edges) - 1
    width = 0.9 / max(len(panel.groups), 1)
    for place, group in enumerate(panel.groups):
        lefts = [index + 0.05 + place * width for index in range(bins)]
        axes.bar(lefts, group.counts, width, align="edge", color=colour(place), label=group.name)
    counts = [count for group in panel.groups for count in group.counts if count > 0]
    if counts and max(counts) > 100 * min(counts):
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.7)
        axes.yaxis.set_major_formatter(lambda value, _place: f"{value:,.0f}")
    step = max(1, math.ceil(len(panel.edges) / 9))
    places = list(range(0, len(panel.edges), step))
    axes.set_xticks(places, [f"{floats([panel.edges[place]])[0]:.3g}" for place in places])
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel("count")
    if panel.groups:
        axes.legend(frameon=False)
    return figure


def bars(panel: BarsPanel) -> Figure:
    """Draw horizontal bars, groups side by side."""
    rows = len(panel.labels) * max(len(panel.groups), 1)
    figure, axes = new_figure(panel.title, (7.2, max(2.4, 0.35 * rows + 1.2)))
    height = 0.85 / max(len(panel.groups), 1)
    for place, group in enumerate(panel.groups):
        at = [index + place * height for index in range(len(panel.labels))]
        axes.barh(at, floats(group.values), height, align="edge", color=colour(place), label=group.name)
    axes.set_yticks([index + 0.42 for index in range(len(panel.labels))], panel.labels)
    axes.invert_yaxis()
    axes.set_xlabel(panel.unit)
    if len(panel.groups) > 1:
        axes.legend(frameon=False)
    return figure


def confusion(panel: ConfusionPanel) -> Figure:
    """Draw the matrix with its counts, coloured by their share of the row."""
    totals = [sum(row) for row in panel.counts]
    shares = [
        [count / total if total else 0.0 for count in row] for row, total in zip(panel.counts, totals, strict=True)
    ]
    texts = [[f"{count}" for count in row] for row in panel.counts]
    title = f"{panel.title} ({panel.mode})" if panel.mode and panel.mode not in panel.title else panel.title
    figure = _grid(title, panel.labels, panel.labels, shares, texts)
    figure.axes[0].set_xlabel("predicted")
    figure.axes[0].set_ylabel("true")
    return figure


def heat(panel: HeatPanel) -> Figure:
    """Draw values in coloured cells; cells that differ from the expectation also show the expected value."""
    values = [floats(row) for row in panel.values]
    texts = [[f"{value:.4g}" for value in row] for row in values]
    if panel.expected is not None:
        for row, wanted_row in enumerate(panel.expected):
            for column, wanted in enumerate(wanted_row):
                if wanted != panel.values[row][column]:
                    texts[row][column] += f"\n(expected {wanted})"
    return _grid(panel.title, panel.rows, panel.columns, values, texts)


def timeline(panel: TimelinePanel) -> Figure:
    """Draw spans to time, one lane below the other; what begins later is drawn thinner over what it overlaps."""
    figure, axes = new_figure(panel.title, (7.2, max(2.4, 0.5 * len(panel.lanes) + 1.6)))
    kinds = list(dict.fromkeys(span.kind for lane in panel.lanes for span in lane.spans))
    for place, kind in enumerate(kinds):
        for index, lane in enumerate(panel.lanes):
            pairs = [floats([span.begin, span.end]) for span in lane.spans if span.kind == kind]
            bars = [(begin, end - begin) for begin, end in pairs if math.isfinite(begin) and math.isfinite(end)]
            height = 0.8 / (1 + 0.5 * place)
            axes.broken_barh(bars, (index - height / 2, height), color=colour(place), label="" if index else kind)
    axes.set_yticks(range(len(panel.lanes)), [lane.name for lane in panel.lanes])
    axes.invert_yaxis()
    axes.set_xlabel(panel.unit)
    if kinds:
        axes.legend(frameon=False, ncols=len(kinds), loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return figure


def _grid(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    texts: Sequence[Sequence[str]],
) -> Figure:
    figure, axes = new_figure(title, (max(4.0, 0.72 * len(columns) + 1.8), max(3.0, 0.55 * len(rows) + 1.6)))
    finite = [value for row in values for value in row if math.isfinite(value)]
    high = max(finite, default=1.0) or 1.0
    axes.imshow([list(row) for row in values], cmap="Blues", vmin=0, vmax=high, aspect="auto")
    for row, line in enumerate(texts):
        for column, text in enumerate(line):
            dark = values[row][column] > 0.55 * high
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xticks(range(len(columns)), columns, rotation=35, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    return figure


Drawer = Callable[..., Figure]
DRAWERS: Final[Mapping[str, Drawer]] = {
    "series": series,
    "histogram": histogram,
    "bars": bars,
    "confusion_matrix": confusion,
    "heat": heat,
    "timeline": timeline,
}


def draw(panel: Panel) -> Figure | None:
    """Return the figure of a panel; None for tables, images and series without a line to draw."""
    drawer = DRAWERS.get(panel.type)
    return None if drawer is None or _is_single(panel) else drawer(panel)


def _is_single(panel: Panel) -> bool:
    """Whether no line of a series has more than one point: a number for a table, as on the page."""
    lines = panel.lines if isinstance(panel, SeriesPanel) else []
    return bool(lines) and all(sum(map(math.isfinite, floats(line.y))) < 2 for line in lines)
