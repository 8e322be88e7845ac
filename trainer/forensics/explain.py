"""From observed weights to the mistakes that explain them: identified, ambiguous, or honestly unexplained.

Nothing here names the nearest hypothesis. A hypothesis explains windows when it gives every weight of every one of them
within the tolerance; of those that do, the ones with the fewest mistakes are kept. When they name different mistakes,
the answer is ambiguous and says how to tell them apart.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from trainer.forensics.cells import Window, ratio
from trainer.forensics.hypotheses import Hypothesis, Key, departures, hypotheses, key_of, of_any_rank
from trainer.forensics.repeats import repeated


class Status(StrEnum):
    """How far the weights are understood."""

    CLEAN = "clean"
    IDENTIFIED = "identified"
    AMBIGUOUS = "ambiguous"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one or several windows say together."""

    status: Status
    names: tuple[str, ...] = ()
    """The mistakes, by name; with AMBIGUOUS those of the first alternative."""
    alternatives: tuple[tuple[str, ...], ...] = ()
    """Of AMBIGUOUS: sets of mistakes that give the same weights, the first one included."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    departures: int = 0
    """How many departures from the right divisor the first set of mistakes is made of."""
    even: bool = True
    """Whether all units of each window weigh the same, whatever that is."""


Agree = Callable[[Window, Hypothesis], bool]
"""Whether a hypothesis agrees with what was observed in a window."""


def explain(
    windows: Sequence[Window],
    *,
    tolerance: float = 1e-6,
    usual_micro_batches: int | None = None,
    repeats: bool = False,
    agree: Agree | None = None,
) -> Reading:
    """Return what the weights of `windows` say, all of them made by the same code.

    `tolerance` is relative, per weight: 1e-6 for factors measured in float32. Windows without a counted cell say
    nothing. With `repeats`, a micro-batch may have been processed twice. `agree` replaces the comparison weight by
    weight, for weights that cannot be distinguished from one another.
    """
    telling = [window for window in windows if window.counted]
    padded = any(_padding_weighs(window) for window in telling)
    even = all(ratio(window) <= 1 + tolerance for window in telling)
    test = agree or _by_weight(tolerance)
    found = _common(telling, test, usual_micro_batches)
    if repeats and telling and min(map(departures, found), default=2) > 1:
        found += repeated(telling, tolerance, usual_micro_batches)
    extra = frozenset({"padding_in_loss"}) if padded else frozenset[str]()
    if not found:
        status = Status.UNEXPLAINED if telling else Status.CLEAN
        return Reading(status=status, names=tuple(sorted(extra)), even=even)
    fewest = min(map(departures, found))
    kept = {key[0] | extra: dict(key[1]) for key in found if departures(key) == fewest}
    ordered = sorted(kept, key=_preference)
    first = tuple(sorted(ordered[0]))
    if len(ordered) > 1:
        alternatives = tuple(tuple(sorted(names)) for names in ordered)
        return Reading(
            status=Status.AMBIGUOUS,
            names=first,
            alternatives=alternatives,
            parameters=kept[ordered[0]],
            departures=fewest + len(extra),
            even=even,
        )
    status = Status.IDENTIFIED if first else Status.CLEAN
    return Reading(status=status, names=first, parameters=kept[ordered[0]], departures=fewest + len(extra), even=even)


def _by_weight(tolerance: float) -> Agree:
    return lambda window, item: all(
        math.isclose(item.scale * mine, cell.weight, rel_tol=tolerance, abs_tol=cell.error)
        for mine, cell in zip(item.shape, window.counted, strict=True)
    )


def _common(windows: Sequence[Window], agree: Agree, usual: int | None) -> list[Key]:
    """Return the hypotheses that explain every window, each once."""
    seen = [
        [key_of(item) for item in hypotheses(window, usual_micro_batches=usual) if agree(window, item)]
        for window in windows
    ]
    # The largest count of all ranks is that of another rank in another window.
    return _everywhere(seen) or _everywhere([list(map(of_any_rank, keys)) for keys in seen])


def _everywhere(seen: Sequence[Sequence[Key]]) -> list[Key]:
    others = [set(keys) for keys in seen[1:]]
    return [key for key in dict.fromkeys(seen[0]) if all(key in keys for keys in others)] if seen else []


def _padding_weighs(window: Window) -> bool:
    largest = max(abs(cell.weight) for cell in window.counted)
    return any(cell.padding > 0 and abs(cell.padding_weight) > 1e-6 * largest for cell in window.cells)


PREFERENCE = ("mean_of_means", "rank_mean", "missing_world_size", "extra_world_size")


def _preference(names: frozenset[str]) -> tuple[int, list[str]]:
    ranks = [PREFERENCE.index(name) if name in PREFERENCE else len(PREFERENCE) for name in names]
    return min(ranks, default=0), sorted(names)
