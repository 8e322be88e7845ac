"""The numbers that show each mistake, as sentences."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from trainer.forensics.cells import Cell, Window
from trainer.forensics.findings import Named
from trainer.forensics.hypotheses import AVERAGED
from trainer.forensics.words import compared, listed, number, place, places, scaled

Numbers = Mapping[str, Any]
SHAPES: Final = frozenset({"mean_of_means", "rank_mean", "microbatch_denominator"})
FACTORS: Final = frozenset(
    {
        "missing_world_size",
        "extra_world_size",
        "extra_accumulation_division",
        "missing_accumulation_division",
        "padding_in_denominator",
        "local_count_as_global",
        "short_last_window",
    }
)


def measured(named: Named, window: Window | None, unit: str) -> str:
    """Return the numbers that show a mistake, or nothing; `window` is the one to take them from."""
    parts = []
    if named.name in BY_NUMBERS:
        parts.append(BY_NUMBERS[named.name](named.numbers))
    elif window is not None and named.name in BY_WINDOW:
        parts.append(BY_WINDOW[named.name](window, named.numbers, unit))
    if "parameters" in named.numbers:
        parts.append(f"Parameters: {listed(named.numbers['parameters'])}.")
    return " ".join(part for part in parts if part)


def late(window: Window) -> Sequence[Cell]:
    """Return the cells that are only in the gradient of their own rank."""
    return [cell for cell in window.supervised if cell.local and cell.weight]


def _stale(numbers: Numbers) -> str:
    return f"It enters with the coefficient {number(numbers.get('coefficient', 1.0))}."


def _auxiliary(numbers: Numbers) -> str:
    low, high = number(numbers["smallest_ratio"]), number(numbers["largest_ratio"])
    return f"Its weight is {low if low == high else f'{low} to {high}'} times the stated one."


def _clipped(numbers: Numbers) -> str:
    low, high = number(numbers["smallest_factor"]), number(numbers["largest_factor"])
    scale = numbers.get("loss_scale")
    which = f", which is {number(numbers['max_norm'])} / {number(scale)}" if scale else ""
    return f"Factors from {low} to {high}, always to the norm {number(numbers['norm'])}{which}."


def _inside(numbers: Numbers) -> str:
    low, high = number(numbers["smallest_factor"]), number(numbers["largest_factor"])
    by = f"by {low}" if low == high else f"by factors from {low} to {high}"
    norm = f", always to the norm {number(numbers['norm'])}" if "norm" in numbers else ""
    return f"Seen {numbers['times']:.0f} times, {by}{norm}."


def _shape(window: Window, _numbers: Numbers, unit: str) -> str:
    return compared(window, unit)


def _factor(window: Window, _numbers: Numbers, unit: str) -> str:
    return scaled(window, unit)


def _local_count(window: Window, numbers: Numbers, unit: str) -> str:
    if "count_of_rank" not in numbers:
        which = "It is not the same rank in every step, as if the largest or smallest count was taken."
        return f"{which} {scaled(window, unit)}"
    rank, whole = numbers["count_of_rank"], sum(cell.units for cell in window.cells)
    own = sum(cell.units for cell in window.cells if cell.rank == rank)
    size = numbers.get(AVERAGED)
    again = f", and the engine averages over {size:.0f} ranks again" if size else ""
    return f"The count of rank {rank:.0f} is used, {own:.6g} of {whole:.6g} {unit}s{again}. {scaled(window, unit)}"


def _short(window: Window, numbers: Numbers, unit: str) -> str:
    if "divided_by" not in numbers:
        return scaled(window, unit)
    return f"A window of {numbers['micro_batches']:.0f} micro-batches is divided by {numbers['divided_by']:.0f}."


def _padded_count(window: Window, _numbers: Numbers, unit: str) -> str:
    padding = sum(cell.padding for cell in window.cells)
    units = sum(cell.units for cell in window.cells)
    return f"The window holds {units:.6g} {unit}s and {padding:.6g} of padding. {scaled(window, unit)}"


def _dropped(window: Window, numbers: Numbers, _unit: str) -> str:
    where = f"Without weight: {places(window.dropped)}." if window.dropped else ""
    some = (
        "Only some parameters lack them, as if they were frozen or detached there." if "parameters" in numbers else ""
    )
    return f"{where} {some}".strip()


def _padding(window: Window, _numbers: Numbers, unit: str) -> str:
    worst = max(window.cells, key=lambda cell: abs(cell.padding_weight))
    inside, right = number(worst.padding_weight), number(worst.weight)
    return f"One of padding weighs {inside} in {place(worst)}, a {unit} there {right}."


def _misplaced(window: Window, _numbers: Numbers, _unit: str) -> str:
    return f"Only in the gradient of their own rank: {places(late(window))}."


def _repeated(_window: Window, numbers: Numbers, unit: str) -> str:
    if "micro_batch" not in numbers:
        return ""
    rank = f"rank {numbers['rank']:.0f}" if "rank" in numbers else "every rank"
    return f"The {unit}s of micro-batch {numbers['micro_batch']:.0f} of {rank} weigh twice as much as all others."


BY_NUMBERS: Final[Mapping[str, Callable[[Numbers], str]]] = {
    "stale_gradients": _stale,
    "batch_statistics": lambda numbers: f"Layers: {listed(numbers['layers'])}.",
    "auxiliary_loss_weight": _auxiliary,
    "clipped_gradients": _clipped,
    "clipped_before_unscale": _clipped,
    "clipped_inside_window": _inside,
    "scaled_inside_window": _inside,
}
BY_WINDOW: Final[Mapping[str, Callable[[Window, Numbers, str], str]]] = {
    **dict.fromkeys(SHAPES, _shape),
    **dict.fromkeys(FACTORS, _factor),
    "local_count_as_global": _local_count,
    "padding_in_denominator": _padded_count,
    "short_last_window": _short,
    "dropped_microbatch": _dropped,
    "padding_in_loss": _padding,
    "sync_on_wrong_microbatch": _misplaced,
    "repeated_samples": _repeated,
}
