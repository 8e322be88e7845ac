"""Panels of a judged trace: the heat table of weights, the findings, and what was seen."""

import math
from collections.abc import Sequence

from trainer.contract.events import encode_number
from trainer.contract.result import HeatPanel, TablePanel
from trainer.forensics.cells import ratio
from trainer.kinds.trace.judge.findings import Finding, several
from trainer.kinds.trace.judge.verdicts import Understanding
from trainer.kinds.trace.judge.weighing import Weighed

HEAT_TITLE = "Weight of one unit, per rank and micro-batch"
FINDINGS_TITLE = "Findings"
SEEN_TITLE = "What was seen, and what was not"
ALWAYS = ("ranks", "windows_looked_at", "steps")
"""Facts that are shown even where they are nothing."""
MOST_ROWS = 64
MOST_COLUMNS = 64


def heat(understood: Sequence[tuple[int, Understanding]], unit: str) -> HeatPanel | None:
    """Return the weights of the most uneven window next to equal ones; None where no window was weighed.

    Only where no window is clear, one that is not judged is shown: what came after its last reduction is not divided.
    """
    clear = [(item, one) for _, item in understood for one in item.clear]
    clear = clear or [(item, one) for _, item in understood for one in item.weighed if one.window.counted]
    if not clear:
        return None
    item, worst = max(clear, key=lambda pair: (_finite(ratio(pair[1].window)), _off(pair[1]), -pair[1].step.step))
    uneven = [one for one in item.clear if ratio(one.window) > 1 + one.tolerance]
    ratios = ratio(worst.window)
    units = math.fsum(cell.units for cell in worst.window.supervised)
    equal = 1 / units
    ranks = sorted({cell.rank for cell in worst.window.cells})[:MOST_ROWS]
    columns = min(MOST_COLUMNS, 1 + max(cell.micro_batch for cell in worst.window.cells))
    weights = {(cell.rank, cell.micro_batch): cell.weight for cell in worst.window.supervised}
    share = f"Uneven in {len(uneven):,} of {several(len(item.weighed), 'window')} looked at"
    return HeatPanel(
        title=HEAT_TITLE,
        note=(
            f"Step {worst.step.step:,}, {units:,.6g} units ({unit}s); expected: the same weight for every one of them, "
            f"{equal:.4g}. Largest divided by smallest weight: {ratios:.4g}. {share}."
        ),
        rows=[f"rank {rank}" for rank in ranks],
        columns=[f"micro-batch {place + 1}" for place in range(columns)],
        values=[[_number(weights.get((rank, place))) for place in range(columns)] for rank in ranks],
        expected=[[_equal(weights.get((rank, place)), equal, worst) for place in range(columns)] for rank in ranks],
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 1e300


def _off(one: Weighed) -> float:
    return abs(one.window.total_weight - 1) if one.scaled else 0.0


def _number(value: float | None) -> float | str | None:
    return None if value is None else encode_number(float(f"{value:.5g}"))


def _equal(value: float | None, equal: float, window: Weighed) -> float | str | None:
    """Return the equal weight; the value itself where it is equal within what was measured."""
    if value is None or math.isclose(value, equal, rel_tol=window.tolerance):
        return _number(value)
    return _number(equal)


def findings_table(findings: Sequence[Finding], allowed: frozenset[str]) -> TablePanel:
    """Return every finding with its place in the source and the change that mends it."""
    rows = [
        [
            f"{item.severity}, allowed" if item.name in allowed else item.severity,
            item.name,
            item.detail,
            item.windows or "-",
            "\n".join(f"{file}:{line}" for file, line in item.places[:4]) or "-",
            item.suggestion,
        ]
        for item in findings
    ]
    return TablePanel(
        title=FINDINGS_TITLE,
        note="" if rows else "Nothing was found in what was seen.",
        columns=["severity", "finding", "what was measured", "windows", "where", "smallest change"],
        rows=rows,
    )


def seen_table(document: dict[str, object], sentences: Sequence[str]) -> TablePanel:
    """Return what the judgement rests on."""
    shown = {name: value for name, value in document.items() if name != "not_seen" and (value or name in ALWAYS)}
    return TablePanel(
        title=SEEN_TITLE,
        columns=["what", "value"],
        rows=[
            *(["not seen", text] for text in sentences),
            *([name.replace("_", " "), _text(value)] for name, value in shown.items()),
        ],
    )


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {item}" for name, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
