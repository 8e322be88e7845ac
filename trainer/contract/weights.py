"""The picture of a diagnosis: observed weights as a heat table next to the expected ones."""

from trainer.contract.diagnosis import Diagnosis
from trainer.contract.result import HeatPanel
from trainer.contract.strict import Number

WEIGHTS_TITLE = "Weight of one unit per rank and micro-batch"
MOST_COLUMNS = 64
DIGITS = 4


def weights_panel(diagnosis: Diagnosis, *, unit: str = "unit") -> HeatPanel | None:
    """Return the heat table of observed weights, with the expected ones; None if no weights were solved."""
    weights = diagnosis.weights
    if weights is None:
        return None
    places = max(map(len, weights.expected), default=0)
    shown = min(places, MOST_COLUMNS)
    note = (
        f"What one {unit} weighs in the gradient of its own rank, solved from the measured gradients. Every {unit} "
        "should have the same weight."
    )
    if shown < places:
        note += f" The first {shown} of {places} micro-batches."
    return HeatPanel(
        title=WEIGHTS_TITLE,
        note=note,
        rows=[f"rank {rank}" for rank in range(len(weights.expected))],
        columns=[f"micro-batch {place}" for place in range(shown)],
        values=[_padded(row, shown) for row in weights.observed],
        expected=[_padded(row, shown) for row in weights.expected],
    )


def _padded(row: list[Number], width: int) -> list[Number]:
    return [*map(_shown, row), *[None] * width][:width]


def _shown(value: Number) -> Number:
    # Rounding, so that weights which differ by the noise of float32 are not shown as different.
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
