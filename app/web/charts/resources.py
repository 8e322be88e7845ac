"""Charts of resource use: one per measure, a line per rank, gaps between stages."""

from collections.abc import Sequence
from typing import Any, Final

from app.db import Session
from app.runs.models import Run
from app.runs.telemetry.resources import ResourceSeries, resources
from app.runs.telemetry.series import thin
from app.web.charts.crowd import MOST_LINES, summarised
from app.web.charts.lines import stepped_panel
from app.web.views.panels import PanelView, panel_views

MIB: Final = 1 << 20
CHARTS: Final = (
    ("cpu_percent", "CPU per rank (% of one core)", 1),
    ("rss_bytes", "Memory per rank (MiB)", MIB),
    ("gpu_percent", "GPU busy (%)", 1),
    ("gpu_bytes", "GPU memory in use (MiB)", MIB),
)
MOST_SAMPLES: Final = 25_000
"""Samples of all ranks that are read for the charts; a run of 1,024 ranks may have 368,640."""
GAP_SECONDS: Final = 0.001
MOST_POINTS: Final = 400
"""Maximum number of samples per line; more are down-sampled, keeping extremes."""


def resource_panels(session: Session, run: Run, *, rank: int | None = None) -> list[PanelView]:
    """Return the charts that have data. Charts of many ranks are summarised; the line of `rank` is added to those."""
    series = resources(session, run, most=MOST_SAMPLES).series
    panels = []
    for key, title, unit in CHARTS:
        if any(value is not None for item in series for value in item[key]):
            panels.append(_panel(series, key, title, unit, rank))
    return panel_views(panels, prefix="resource")


def _panel(series: Sequence[ResourceSeries], key: str, title: str, unit: int, chosen: int | None) -> dict[str, Any]:
    lines, points, drawn = [], 0, 0
    by_rank: dict[int, list[ResourceSeries]] = {}
    for item in series:
        by_rank.setdefault(item.rank, []).append(item)
    for rank in sorted(by_rank):
        x, y = _line(by_rank[rank], key, unit)
        kept = thin(y, MOST_POINTS)
        points, drawn = points + len(x), drawn + len(kept)
        lines.append({"name": f"rank {rank}", "x": [x[index] for index in kept], "y": [y[index] for index in kept]})
    if len(lines) > MOST_LINES:
        few, words = summarised(lines, f"rank {chosen}")
        return stepped_panel(title, "seconds", few, drawn=1, there=1) | {"note": words}
    return stepped_panel(title, "seconds", lines, drawn=drawn, there=points, things="samples")


def _line(series: Sequence[ResourceSeries], key: str, unit: int) -> tuple[list[float], list[float | None]]:
    """Return the samples of one rank over all its stages; a null before each stage breaks the line there."""
    x: list[float] = []
    y: list[float | None] = []
    for item in series:
        x += [item.seconds[0] - GAP_SECONDS, *item.seconds]
        y += [None, *(None if value is None else round(value / unit, 1) for value in item[key])]
    return x, y
