"""The panels of a gradient audit."""

from typing import Any, Final

from trainer.common.rank_devices import devices_panel
from trainer.contract.diagnosis import Diagnosis
from trainer.contract.events import encode_number
from trainer.contract.result import HeatPanel, HistogramGroup, HistogramPanel, Panel, TablePanel
from trainer.contract.weights import weights_panel
from trainer.kinds.gradient_audit.comparison import EDGES
from trainer.kinds.gradient_audit.measured import Measured

ERRORS_TITLE: Final = "Absolute gradient errors, code under audit and wrong rules"
COUNTS_TITLE: Final = "Units per rank and micro-batch"
MOST_ROWS: Final = 200
MOST_COLUMNS: Final = 64


def build_panels(found: Measured, diagnosis: Diagnosis) -> list[Panel]:
    """Return every panel in page order: the weights first if they are wrong, else last."""
    panels: list[Panel] = [errors(found), tensors(found), steps(found), counts(found), devices(found)]
    weights = weights_panel(diagnosis, unit=found.target.unit)
    if weights is not None:
        panels.insert(len(panels) if diagnosis.status == "clean" else 0, weights)
    return panels


def errors(found: Measured) -> HistogramPanel:
    """Distribution of errors."""
    return HistogramPanel(
        title=ERRORS_TITLE,
        note="Every component on every rank in every step. The first bin contains all smaller errors, including zeros.",
        edges=list(EDGES),
        log_x=True,
        x_label="|g - reference|",
        groups=[
            HistogramGroup(name="code under audit", counts=found.parity.histogram),
            HistogramGroup(name="wrong: rank_mean", counts=found.wrong["rank_mean"].histogram),
            HistogramGroup(name="wrong: missing_world_size", counts=found.wrong["missing_world_size"].histogram),
        ],
    )


def tensors(found: Measured) -> TablePanel:
    """Errors per parameter."""
    worst = sorted(found.parity.tensors, key=lambda item: -(item.share if item.share == item.share else float("inf")))
    note = "Worst over ranks and steps, largest share first. A share above 1 is outside the tolerance."
    if len(worst) > MOST_ROWS:
        note += f" The first {MOST_ROWS} of {len(worst)} parameters."
    return TablePanel(
        title="Gradient error per parameter",
        note=note,
        columns=["Parameter", "Components", "Largest error", "Share of tolerance", "Outside"],
        rows=[
            [item.name, item.components, encode_number(item.max_abs_error), encode_number(item.share), item.outside]
            for item in worst[:MOST_ROWS]
        ],
    )


def steps(found: Measured) -> TablePanel:
    """What every rank did in every step."""
    rows: list[list[Any]] = []
    for step, row in enumerate(found.comparisons):
        for rank, item in enumerate(row):
            seen = found.reports[rank]["steps"][step]
            ended = seen["reductions"]
            where = "not visible" if ended is None else ", ".join(map(str, ended)) or "none"
            rows.append(
                [
                    step,
                    rank,
                    sum(found.counts[step][rank]),
                    encode_number(item.max_abs_error),
                    item.outside,
                    seen["backwards"],
                    where,
                ]
            )
    return TablePanel(
        title="Steps and ranks",
        note="A reduction of the whole gradient ends with a backward pass; passes are counted from 0 in each window.",
        columns=["Step", "Rank", "Units", "Largest error", "Outside", "Backward passes", "Reductions end with"],
        rows=rows[:MOST_ROWS],
    )


def counts(found: Measured) -> HeatPanel:
    """Units of the first window."""
    first = [row[:MOST_COLUMNS] for row in found.counts[0]]
    return HeatPanel(
        title=COUNTS_TITLE,
        note=f"First window: {sum(map(sum, found.counts[0])):g} in all, counted in the unit {found.target.unit}.",
        rows=[f"rank {rank}" for rank in range(len(first))],
        columns=[f"micro-batch {place}" for place in range(len(first[0]))],
        values=[list(row) for row in first],
    )


def devices(found: Measured) -> TablePanel:
    """The device of every rank."""
    return devices_panel(
        found.reports, "Engine", lambda report: f"{report['engine']}{', sharded' if report['sharded'] else ''}"
    )
