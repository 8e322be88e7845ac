"""Parameters whose gradients have the same weights, so that a fault of some parameters does not look global."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from trainer.forensics.cells import overtaken
from trainer.forensics.solve import QUIET, Fit, fits, shares, solve
from trainer.forensics.system import Kind, System

MOST_GROUPS = 6
ATTEMPTS: Sequence[tuple[Kind, ...]] = (
    ("units", "extra"),
    ("units", "extra", "stale"),
    ("units", "extra", "padding"),
    ("units", "extra", "padding", "stale"),
)
"""Columns to solve for: others only where those of the objective leave a residual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Parameters with the same weights, and these weights for every step."""

    names: Sequence[str]
    solved: Sequence[Fit]


@dataclass(slots=True, kw_only=True)
class Grouping:
    """All parameters in groups; `odd` are those whose gradient no weights give."""

    kinds: Sequence[Kind]
    groups: list[Group] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    trusted: bool = True
    """False where so many columns were needed that any gradient would have been consistent."""


def grouped(systems: Sequence[System], tolerance: float) -> Grouping:
    """Return the parameters in as few groups as possible, solved with as few kinds of columns as possible.

    Without any consistent grouping, the one with the columns of the objective alone is returned, with `odd` names;
    but where more columns than numbers would be consistent, that is returned as not trusted.
    """
    attempts = [kinds for kinds in ATTEMPTS if _makes_sense(systems, kinds)]
    candidates = [(kinds, _group(systems, systems[0].names, kinds, tolerance)) for kinds in attempts]
    for kinds, whole in candidates:
        if _consistent(whole, tolerance) and _trusted(whole, kinds):
            return Grouping(kinds=kinds, groups=[whole])
    tried: list[Grouping] = [
        Grouping(kinds=kinds, groups=[whole], trusted=False)
        for kinds, whole in candidates
        if _consistent(whole, tolerance)
    ]
    for kinds in attempts:
        found = _split(systems, kinds, tolerance)
        # Small groups prove nothing by themselves, but the same columns must explain a group that does.
        if not found.odd and len(found.groups) <= MOST_GROUPS and any(_trusted(item, kinds) for item in found.groups):
            return found
        tried.append(found)
    return tried[0]


def parted(systems: Sequence[System], group: Group, kinds: Sequence[Kind], tolerance: float) -> list[Group]:
    """Return the group, or two where only micro-batches that are not reduced use some of its parameters.

    A reduction that comes too early leaves out the micro-batches after it. If an earlier one is left out, the reason
    is that its parameters are.
    """
    pairs = [(system, _reduced(system, fit, tolerance)) for system, fit in zip(systems, group.solved, strict=True)]
    columns = [[[system.columns[place] for place in side] for side in sides] for system, sides in pairs]
    if not any(overtaken(local, shared) for local, shared in columns):
        return [group]
    alone, others = (
        [name for name in group.names if all(_uses_only(system, name, places[side]) for system, places in pairs)]
        for side in (0, 1)
    )
    if not alone or not others or len(alone) + len(others) != len(group.names):
        return [group]
    return [_group(systems, names, kinds, tolerance) for names in (others, alone)]


def _reduced(system: System, fit: Fit, tolerance: float) -> tuple[set[int], set[int]]:
    """Return the cells, as positions of columns, that are only in their own rank's gradient, and all others."""
    local: set[int] = set()
    shared: set[int] = set()
    near = 2 * tolerance * float(fit.weights[fit.determined].abs().max()) if bool(fit.determined.any()) else 0.0
    for line, place in enumerate(fit.places):
        column = system.columns[place]
        if column.kind == "units" and bool(fit.determined[line]) and system.ranks > 1:
            row = fit.weights[line].abs()
            others = torch.cat([row[: column.rank], row[column.rank + 1 :]])
            alone = float(row[column.rank]) > near and bool((others <= near).all())
            (local if alone else shared).add(place)
    return local, shared


def _uses_only(system: System, name: str, places: set[int]) -> bool:
    norms = torch.linalg.vector_norm(system.blocks[name][:, : len(system.columns)], dim=0)
    used = {place for place in system.places(("units",)) if float(norms[place]) > 1e-12 * float(norms.max())}
    return used <= places


def _makes_sense(systems: Sequence[System], kinds: Sequence[Kind]) -> bool:
    present = {column.kind for system in systems for column in system.columns}
    return all(kind in present for kind in kinds if kind in ("padding", "stale"))


def _trusted(group: Group, kinds: Sequence[Kind]) -> bool:
    # More columns than the objective has are believed only where a residual could have shown.
    return kinds == ATTEMPTS[0] or all(fit.redundancy > 0 for fit in group.solved)


def _group(systems: Sequence[System], names: Sequence[str], kinds: Sequence[Kind], tolerance: float) -> Group:
    return Group(names=names, solved=[solve(system, names, kinds, tolerance) for system in systems])


def _consistent(group: Group, tolerance: float) -> bool:
    return all(fits(fit, tolerance) for fit in group.solved)


def _split(systems: Sequence[System], kinds: Sequence[Kind], tolerance: float) -> Grouping:
    found = Grouping(kinds=kinds)
    left = _by_information(systems, kinds)
    quiet = [name for name in left if _is_quiet(systems, name, tolerance)]
    left = [name for name in left if name not in quiet]
    while left and len(found.groups) <= MOST_GROUPS:
        members = _seed(systems, left, kinds, tolerance)
        if not members:
            found.odd.append(left.pop(0))
            continue
        left = [name for name in left if name not in members]
        found.groups.append(_group(systems, members, kinds, tolerance))
    found.odd += left
    if found.groups and quiet:
        first = found.groups[0]
        found.groups[0] = _group(systems, [*first.names, *quiet], kinds, tolerance)
    return found


def _seed(systems: Sequence[System], names: Sequence[str], kinds: Sequence[Kind], tolerance: float) -> list[str]:
    """Return the first of `names` and all others that have its weights; nothing if no weights give its gradient."""
    members: list[str] = []
    group: Group | None = None
    for name in names:
        if group is not None and all(bool(fit.determined.all()) for fit in group.solved):
            break
        larger = _group(systems, [*members, name], kinds, tolerance)
        if _consistent(larger, tolerance):
            members, group = [*members, name], larger
        elif not members:
            return []
    if group is None:
        return []
    rest = [name for name in names if name not in members]
    return members + [name for name in rest if _agrees(systems, group, name, tolerance)]


def _agrees(systems: Sequence[System], group: Group, name: str, tolerance: float) -> bool:
    return all(
        bool((shares(system, [name], fit.places, fit.weights, tolerance) <= tolerance).all())
        for system, fit in zip(systems, group.solved, strict=True)
    )


def _by_information(systems: Sequence[System], kinds: Sequence[Kind]) -> list[str]:
    """Return the parameters, those first that tell most cells apart, then those with the largest gradients."""

    def weight(name: str) -> tuple[int, float]:
        block = systems[0].blocks[name][:, systems[0].places(kinds)]
        values = torch.linalg.svdvals(block)
        return int((values > 1e-8 * values.max().clamp(min=1e-300)).sum()), float(values.max())

    return sorted(systems[0].names, key=weight, reverse=True)


def _is_quiet(systems: Sequence[System], name: str, tolerance: float) -> bool:
    for system in systems:
        block = system.blocks[name].clone()
        block[:, : len(system.columns)] *= system.expected.clamp(min=0)
        if float(torch.linalg.vector_norm(block)) > QUIET * tolerance * system.norm:
            return False
    return True
