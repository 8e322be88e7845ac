"""What the weights of one group of parameters say over all steps: the engine's reading, and how ranks differ."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trainer.forensics.between import between
from trainer.forensics.cells import Window, ratio
from trainer.forensics.clipping import Clip, clipping
from trainer.forensics.collinear import alike, compatible
from trainer.forensics.explain import Reading, Status, explain
from trainer.forensics.groups import Group
from trainer.forensics.system import System
from trainer.forensics.views import View, views

SHORT = "short_last_window"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What is known about a group of parameters."""

    parameters: Sequence[str]
    status: Status
    names: frozenset[str] = frozenset()
    """With AMBIGUOUS, those of the first alternative."""
    alternatives: tuple[tuple[str, ...], ...] = ()
    numbers: dict[str, float] = field(default_factory=dict)
    windows: Sequence[Window] = ()
    """As if everything were reduced; empty where ranks differ in an unknown way."""
    by_rank: Sequence[Window] = ()
    """Where ranks differ in an unknown way, the window of the first wrong step as it is in every rank's gradient."""
    steps: Sequence[int] = ()
    """The steps that are wrong, where others are right."""
    clip: Clip | None = None
    known: int = 0
    """Independent combinations of weights that the gradients determine, the fewest of all steps."""
    cells: int = 0
    """Cells whose weights were to be solved."""
    separable: bool = True
    """Whether every weight could be determined, apart from cells without a gradient."""


def account(systems: Sequence[System], group: Group, tolerance: float) -> Account:
    """Return what the weights of `group` say."""
    separable = all(
        bool(fit.determined[line]) or alike(system, group.names, place) == "zero"
        for system, fit in zip(systems, group.solved, strict=True)
        for line, place in enumerate(fit.places)
        if system.columns[place].kind == "units" and system.columns[place].units > 0
    )
    found = _separable(systems, group, tolerance) if separable else compatible_account(systems, group, tolerance)
    if separable and found.status is Status.UNEXPLAINED and any(fit.redundancy <= 0 for fit in group.solved):
        # As many weights as numbers always fit: padding or a left-over gradient may hide in them.
        hidden = compatible_account(systems, group, tolerance, surely=False)
        if hidden.status is not Status.UNEXPLAINED:
            found, separable = hidden, False
    return replace(
        found,
        known=min(fit.rank for fit in group.solved),
        cells=max(len(fit.places) for fit in group.solved),
        separable=separable,
    )


def compatible_account(systems: Sequence[System], group: Group, tolerance: float, *, surely: bool = True) -> Account:
    """Return which known mistakes give the gradients of cells that cannot all be distinguished.

    With `surely`, a single set of mistakes is identified if only micro-batches with parallel gradients are confused.
    """
    sets, twins = compatible(systems, group, tolerance, usual=usual_micro_batches(systems))
    if not sets:
        return Account(parameters=group.names, status=Status.UNEXPLAINED)
    first = min(sets, key=sorted)
    if not first:
        return Account(parameters=group.names, status=Status.CLEAN)
    sure = surely and twins and len(sets) == 1
    return Account(
        parameters=group.names,
        status=Status.IDENTIFIED if sure else Status.AMBIGUOUS,
        names=first,
        alternatives=() if sure else tuple(tuple(sorted(names)) for names in sorted(sets, key=sorted)),
        numbers=dict(sets[first]),
    )


def usual_micro_batches(systems: Sequence[System]) -> int | None:
    """Return how many micro-batches most steps have, or None if all have the same number."""
    counts = Counter(
        1 + max((column.micro_batch for column in system.columns if column.kind == "units"), default=0)
        for system in systems
    )
    return counts.most_common(1)[0][0] if len(counts) > 1 else None


def _separable(systems: Sequence[System], group: Group, tolerance: float) -> Account:
    usual = usual_micro_batches(systems)
    seen = list(views(systems, group, tolerance))
    if len(seen) > 1:
        return _by_rank(seen, group, tolerance, usual)
    view = seen[0]
    extra = set(view.names)
    if any(view.stale):
        extra.add("stale_gradients")
    silent = [not window.counted and bool(window.supervised) for window in view.windows]
    if any(silent):
        extra.add("dropped_microbatch")
    reading, steps = _read(view.windows, tolerance, usual)
    if any(silent) and not all(silent) and reading.status is Status.CLEAN:
        steps = [place for place, gone in enumerate(silent) if gone]
    clip = None
    if reading.status is Status.UNEXPLAINED:
        clip = between([system.step for system in systems], view.windows)
        clip = clip or clipping(systems, view.windows, tolerance)
        if clip is not None:
            reading, steps = _read(clip.windows, tolerance, None if clip.hides_factors else usual)
            extra.add(clip.name)
    found = _account(group, view, reading, frozenset(extra), steps=_numbers(systems, steps), clip=clip)
    short = [window.micro_batches() for window in view.windows if window.micro_batches() != usual]
    if SHORT in found.names and usual is not None and short:
        found.numbers.update(micro_batches=min(short), divided_by=usual)
    return found


def _account(
    group: Group, view: View, reading: Reading, extra: frozenset[str], *, steps: Sequence[int], clip: Clip | None
) -> Account:
    names = extra | frozenset(reading.names)
    status = reading.status
    if status is Status.CLEAN and names:
        status = Status.IDENTIFIED
    numbers = dict(reading.parameters)
    stale = max(view.stale, key=abs, default=0.0)
    if stale:
        numbers["coefficient"] = stale
    if clip is not None:
        numbers |= clip.numbers
    return Account(
        parameters=group.names,
        status=status,
        names=names,
        alternatives=tuple(tuple(sorted({*names, *extra})) for names in reading.alternatives),
        numbers=numbers,
        windows=view.windows,
        steps=steps,
        clip=clip,
    )


def _read(windows: Sequence[Window], tolerance: float, usual: int | None) -> tuple[Reading, list[int]]:
    """Return what all windows say together, or all that are not right, with their positions."""
    whole = explain(windows, tolerance=tolerance, usual_micro_batches=usual, repeats=True)
    if whole.status is not Status.UNEXPLAINED or len(windows) == 1:
        return whole, []
    short = _by_length(windows, tolerance, usual)
    if short is not None:
        return short, []
    alone = [explain([item], tolerance=tolerance, usual_micro_batches=usual, repeats=True) for item in windows]
    wrong = [place for place, reading in enumerate(alone) if reading.status is not Status.CLEAN]
    if 0 < len(wrong) < len(windows):
        chosen = [windows[place] for place in wrong]
        part = explain(chosen, tolerance=tolerance, usual_micro_batches=usual, repeats=True)
        if part.status is not Status.UNEXPLAINED:
            return part, wrong
    return whole, []


def _by_length(windows: Sequence[Window], tolerance: float, usual: int | None) -> Reading | None:
    """Return what windows say whose only further mistake is that short ones are divided by the usual number."""
    lengths: dict[int, list[Window]] = {}
    for window in windows:
        lengths.setdefault(window.micro_batches(), []).append(window)
    if len(lengths) == 1:
        return None
    readings = [
        explain(same, tolerance=tolerance, usual_micro_batches=usual, repeats=True) for same in lengths.values()
    ]
    # The same code ran in all windows, so they must have all other mistakes in common.
    sets = [{frozenset(names) for names in reading.alternatives or (reading.names,)} for reading in readings]
    common = set.intersection(*({names - {SHORT} for names in found} for found in sets))
    if len(common) != 1 or any(reading.status is Status.UNEXPLAINED for reading in readings):
        return None
    names = next(iter(common)) | {SHORT}
    if not any(names in found for found in sets):
        return None
    numbers = {key: value for reading in readings for key, value in reading.parameters.items()}
    return Reading(status=Status.IDENTIFIED, names=tuple(sorted(names)), parameters=numbers, even=False)


def _numbers(systems: Sequence[System], places: Sequence[int]) -> list[int]:
    return [systems[place].step.step for place in places]


def _by_rank(seen: Sequence[View], group: Group, tolerance: float, usual: int | None) -> Account:
    """Return what is wrong where every rank's gradient has its own weights of all cells."""
    readings = [_read(view.windows, tolerance, usual)[0] for view in seen]
    names = {frozenset(reading.names) for reading in readings}
    own = all(reading.parameters.get("count_of_rank") == rank for rank, reading in enumerate(readings))
    same = len({tuple(sorted(reading.parameters.items())) for reading in readings}) == 1
    known = all(reading.status is Status.IDENTIFIED for reading in readings) and len(names) == 1 and (own or same)
    if not known:
        apart = [
            step for step, windows in enumerate(zip(*(view.windows for view in seen), strict=True)) if _apart(windows)
        ]
        shown = [view.windows[apart[0] if apart else 0] for view in seen]
        return Account(parameters=group.names, status=Status.UNEXPLAINED, by_rank=shown)
    return Account(parameters=group.names, status=Status.IDENTIFIED, names=next(iter(names)))


def _apart(windows: Sequence[Window]) -> bool:
    """Return whether a step has other weights on one rank than on another."""
    rows = [[cell.weight for cell in window.cells] for window in windows]
    return any(
        abs(mine - first) > 1e-3 * max(map(abs, rows[0]))
        for row in rows
        for mine, first in zip(row, rows[0], strict=True)
    )


def uneven(windows: Sequence[Window], tolerance: float) -> bool:
    """Return whether units of one window have different weights."""
    return any(ratio(window) > 1 + 10 * tolerance for window in windows if window.counted)
