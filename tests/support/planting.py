"""Mistakes by name, as changes of a planned window: what the code would do that makes them."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from tests.support.gradients import Factor, Gradient, Plan, norm_of


def _rank_padding(plan: Plan, rank: int) -> int:
    return sum(plan.units[rank]) + sum(plan.padding[rank])


SHAPES: dict[str, Factor] = {
    "": lambda plan, _rank, _place: plan.ranks / plan.whole,
    "mean_of_means": lambda plan, rank, place: 1 / (plan.places * plan.units[rank][place]),
    "rank_mean": lambda plan, rank, _place: 1 / sum(plan.units[rank]),
    "microbatch_denominator": lambda plan, _rank, place: (
        plan.ranks / (plan.places * sum(row[place] for row in plan.units))
    ),
}
PADDED: dict[str, Factor] = {
    "": lambda plan, _rank, _place: plan.ranks / plan.padded,
    "mean_of_means": lambda plan, rank, place: (
        1 / (plan.places * (plan.units[rank][place] + plan.padding[rank][place]))
    ),
    "rank_mean": lambda plan, rank, _place: 1 / _rank_padding(plan, rank),
    "microbatch_denominator": lambda plan, _rank, place: (
        plan.ranks
        / (plan.places * sum(mine[place] + more[place] for mine, more in zip(plan.units, plan.padding, strict=True)))
    ),
}
SCALES: dict[str, Factor] = {
    "missing_world_size": lambda plan, *_: 1 / plan.ranks,
    "extra_world_size": lambda plan, *_: float(plan.ranks),
    "extra_accumulation_division": lambda plan, *_: 1 / plan.places,
    "missing_accumulation_division": lambda plan, *_: float(plan.places),
}
COUNTS = ("local_count_as_global", "padding_in_denominator")
LOOPS = (
    "dropped_microbatch",
    "unsynchronised_step",
    "sync_on_wrong_microbatch",
    "stale_gradients",
    "unreduced_parameters",
    "repeated_samples",
    "padding_in_loss",
    "clipped_inside_window",
)
EXCLUSIVE = (
    {"mean_of_means", "rank_mean", "microbatch_denominator", "local_count_as_global"},
    {"missing_world_size", "extra_world_size"},
    {"extra_accumulation_division", "missing_accumulation_division"},
    {"unsynchronised_step", "sync_on_wrong_microbatch", "unreduced_parameters"},
    {"padding_in_denominator", "local_count_as_global"},
    {"dropped_microbatch", "repeated_samples"},
    {"repeated_samples", "stale_gradients"},
    # Ranks clip by different factors what they already share: no window of one set of weights is left.
    {"clipped_inside_window", "sync_on_wrong_microbatch", "unreduced_parameters"},
    {"clipped_inside_window", "stale_gradients"},
)
"""Mistakes of which one window can have only one, or that undo one another."""


def named(names: Iterable[str]) -> set[str]:
    """Return what planted mistakes are called: a local count is one mistake, with the factor world_size or without."""
    found = set(names)
    return found - {"missing_world_size"} if "local_count_as_global" in found else found


def planted(names: Iterable[str], plan: Plan, *, count_of_rank: int = 0) -> Plan:
    """Return the plan with all of these mistakes. Raises KeyError for a name that cannot be planted."""
    wanted = set(names)
    shape = next((name for name in SHAPES if name in wanted), "")
    base = PADDED[shape] if "padding_in_denominator" in wanted else SHAPES[shape]
    scales = [SCALES[name] for name in SCALES if name in wanted]
    if "local_count_as_global" in wanted:
        scales.append(lambda now, *_: now.whole / sum(now.units[count_of_rank]))
    unknown = wanted - {*SHAPES, *SCALES, *LOOPS, *COUNTS}
    if unknown:
        raise KeyError(sorted(unknown))

    def factor(now: Plan, rank: int, place: int) -> float:
        value = base(now, rank, place)
        for scale in scales:
            value *= scale(now, rank, place)
        return value

    return replace(
        plan,
        factor=factor,
        padding_factor=factor if "padding_in_loss" in wanted else plan.padding_factor,
        cleared_before=(plan.places - 1,) if "dropped_microbatch" in wanted else (),
        reduced_after=()
        if "unsynchronised_step" in wanted
        else ((0,) if "sync_on_wrong_microbatch" in wanted else None),
        keeps="stale_gradients" in wanted,
        between=_clipping(plan, factor) if "clipped_inside_window" in wanted else None,
        alone=frozenset({"layer.bias", "head"}) if "unreduced_parameters" in wanted else frozenset(),
        twice=(plan.ranks - 1, 0) if "repeated_samples" in wanted else None,
    )


def _clipping(plan: Plan, factor: Factor) -> Callable[[int, Gradient], Gradient]:
    """Return what clips after every backward pass, to half the norm of the smallest micro-batch."""
    smallest = min(factor(plan, rank, place) for rank in range(plan.ranks) for place in range(plan.places))
    limit = 0.5 * smallest * math.sqrt(sum(plan.parameters.values()))

    def clipped(_place: int, gradient: Gradient) -> Gradient:
        most = min(1.0, limit / (norm_of(gradient) or limit))
        return {name: value * most for name, value in gradient.items()}

    return clipped


def possible(names: Iterable[str]) -> bool:
    """Return whether these mistakes can be made together."""
    return all(len(set(names) & group) <= 1 for group in EXCLUSIVE)
