"""Charts of a run's metrics: one per metric, a line per stage and rank, up to the page's limit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.db import Session
from app.runs.telemetry.series import MetricSeries, metric_keys, metrics
from app.web.charts.crowd import MOST_LINES, summarised
from app.web.charts.lines import stepped_panel
from app.web.views.panels import NUMBERS, PanelView, panel_views

POINTS: Final = 300
"""Points per line when the page is rendered; the browser requests finer data on zoom."""
FIRST_CHARTS: Final = 12
CROWD_CHARTS: Final = 4
"""The same for a run with many ranks."""
MOST_CHARTS: Final = 96
FIRST_METRICS: Final = ("loss", "accuracy")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCharts:
    """The charts of one page, and the number of further metrics."""

    panels: list[PanelView]
    names: list[str]
    """Every metric of the run, losses and accuracies first."""
    matching: int
    """Metrics whose name contains the search text; all metrics without one."""
    find: str
    most: int
    numbers: list[list[Any]] = field(default_factory=list)
    """Metric, line, step and value of every metric that has a single point per line: these are not drawn as charts."""

    @property
    def shown(self) -> int:
        """Number of metrics on the page, as charts or as numbers."""
        return len(self.panels) + len({row[0] for row in self.numbers})

    @property
    def first(self) -> str:
        """Parts of metric names that are sorted first; the browser uses the same order when metrics arrive."""
        return " ".join(FIRST_METRICS)

    @property
    def more(self) -> int | None:
        """Number of charts on the next larger page; None if there is no more to show."""
        wanted = min(2 * self.most, self.matching, MOST_CHARTS)
        return wanted if wanted > self.shown else None


def metric_charts(
    session: Session, run_id: int, *, find: str = "", most: int = FIRST_CHARTS, rank: int | None = None
) -> MetricCharts:
    """Return at most `most` charts of the metrics whose name contains `find`, case-insensitively.

    Charts of many ranks are summarised; the line of `rank` is added to those.
    """
    names = sorted(metric_keys(session, run_id), key=lambda key: (not any(word in key for word in FIRST_METRICS), key))
    matching = [name for name in names if find.casefold() in name.casefold()]
    most = max(1, min(most, MOST_CHARTS))
    shown = matching[:most]
    found = metrics(session, run_id, keys=shown, max_points=POINTS).series if shown else []
    by_key: dict[str, list[MetricSeries]] = {key: [] for key in shown}
    for item in found:
        by_key[item.key].append(item)
    panels = [metric_panel(key, items, rank=rank) for key, items in by_key.items()]
    views = panel_views(panels, prefix="metric")
    return MetricCharts(
        panels=[view for view in views if view.type != NUMBERS],
        numbers=[[view.data["title"], *row] for view in views if view.type == NUMBERS for row in view.view.rows],
        names=names,
        matching=len(matching),
        find=find,
        most=most,
    )


def metric_panel(key: str, series: Sequence[MetricSeries], *, rank: int | None = None) -> dict[str, Any]:
    """Return the series panel of one metric; each line keeps its own steps. Many lines are summarised."""
    points, drawn = sum(item.points for item in series), sum(len(item.steps) for item in series)
    lines = [{"name": line_name(item), "x": item.steps, "y": item.values} for item in series]
    if len(lines) > MOST_LINES:
        chosen = next((line_name(item) for item in reversed(series) if item.rank == rank), None)
        few, words = summarised(lines, chosen)
        return stepped_panel(key, "step", few, drawn=1, there=1) | {"note": words}
    panel = stepped_panel(key, "step", lines, drawn=drawn, there=points)
    return {**panel, "points": points, "drawn": drawn}


def line_name(item: MetricSeries) -> str:
    """Return the name of one metric line: stage, attempt if repeated, rank."""
    attempt = f" attempt {item.attempt}" if item.attempt > 1 else ""
    return f"{item.stage}{attempt} rank {item.rank}"
