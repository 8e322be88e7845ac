"""Gradients to names: fixture M, planted mistakes alone and in pairs, and gradients that no known mistake makes."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.gradients import PARAMETERS, Factor, Plan, evidence
from tests.support.planting import COUNTS, LOOPS, SCALES, SHAPES, named, planted, possible
from trainer.contract.diagnosis import Diagnosis
from trainer.forensics.diagnose import diagnose
from trainer.forensics.evidence import Evidence

NAMES = [*(name for name in SHAPES if name), *SCALES, *LOOPS, *COUNTS]
STEPS = 3
SEED = 11


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # thousands of small matrices: threads only wait for one another
    yield
    torch.set_num_threads(before)


def names_of(diagnosis: Diagnosis) -> set[str]:
    return {cause.name for cause in diagnosis.causes}


def read(names: Any, plan: Plan, *, steps: int = STEPS, **more: Any) -> Diagnosis:
    return diagnose(evidence([planted(names, plan)] * steps, **more))


FIXTURE = {
    "correct": (),
    "mean of means": ("mean_of_means",),
    "token mean per rank": ("rank_mean",),
    "factor missing": ("missing_world_size",),
    "factor twice": ("extra_world_size",),
    "divided by k": ("extra_accumulation_division",),
    "factor missing, divided by k": ("missing_world_size", "extra_accumulation_division"),
    "k forgotten": ("mean_of_means", "missing_accumulation_division"),
    "k forgotten, times W": ("mean_of_means", "missing_accumulation_division", "extra_world_size"),
    "means times W": ("mean_of_means", "extra_world_size"),
    "denominator per micro-step": ("microbatch_denominator",),
    "count of rank 0": ("local_count_as_global",),
    "last micro-batch lost": ("dropped_microbatch",),
    "padding in the denominator": ("padding_in_denominator",),
    "padding in loss and denominator": ("padding_in_denominator", "padding_in_loss"),
    "no sync": ("unsynchronised_step",),
}


def _lost(plan: Plan) -> Plan:
    """Return the plan in which the last micro-batch is in the count but not in the sum."""
    right = plan.factor
    return replace(plan, factor=lambda now, r, m: 0.0 if m == now.places - 1 else right(now, r, m))


@pytest.mark.parametrize("case", FIXTURE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fixture_is_named(case: str, dtype: torch.dtype) -> None:
    names = FIXTURE[case]
    plan = _lost(Plan(dtype=dtype)) if case == "last micro-batch lost" else planted(names, Plan(dtype=dtype))
    found = diagnose(evidence([plan] * STEPS, tolerance=1e-6 if dtype == torch.float64 else 1e-4))
    assert names_of(found) == set(names)
    assert found.status == ("identified" if names else "clean")
    assert found.residual is not None
    assert float(found.residual) < (1e-12 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("case", FIXTURE)
def test_fixture_weights_are_the_exact_ones(case: str) -> None:
    names = FIXTURE[case]
    plan = planted(names, Plan())
    found = diagnose(evidence([plan]))
    assert found.weights is not None
    local = "unsynchronised_step" in names
    for rank, place in itertools.product(range(2), range(3)):
        right = plan.factor(plan, rank, place) / (1 if local else 2) * (place not in plan.cleared_before[:0])
        if "dropped_microbatch" in names and place < 2:
            right = 0.0
        assert found.weights.observed[rank][place] == pytest.approx(right, rel=1e-9, abs=1e-12)
        assert found.weights.expected[rank][place] == 1 / 20


@pytest.mark.parametrize("case", FIXTURE)
def test_one_cell_off_is_no_longer_named(case: str) -> None:
    plan = planted(FIXTURE[case], Plan())
    right = plan.factor
    off = replace(plan, factor=lambda now, r, m: right(now, r, m) * (1.01 if (r, m) == (0, 2) else 1.0))
    found = diagnose(evidence([off]))
    assert found.status == "unexplained"
    assert names_of(found) <= {"unsynchronised_step", "padding_in_loss", "dropped_microbatch"}


SPELLINGS = {
    "sum times W over N": lambda plan, *_: plan.ranks / plan.whole,
    "weighted means": lambda plan, r, m: 1 / plan.units[r][m] * (plan.units[r][m] * plan.ranks / plan.whole),
    "by the mean count of a rank": lambda plan, *_: 1 / (plan.whole / plan.ranks),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("reduced_after", [None, (0, 1, 2), (1, 2)])
def test_right_code_in_another_spelling_is_clean(spelling: str, reduced_after: Any) -> None:
    found = diagnose(evidence([Plan(factor=SPELLINGS[spelling], reduced_after=reduced_after)] * STEPS))
    assert (found.status, found.causes, found.suggestion) == ("clean", [], "")


def test_gradients_scaled_after_the_sync_are_clean() -> None:
    plan = Plan(
        factor=lambda *_: 1.0,
        averages=False,
        after=lambda _step, gradient: {name: value / 20 for name, value in gradient.items()},
    )
    assert diagnose(evidence([plan])).status == "clean"


@st.composite
def plans(draw: Any) -> Plan:
    ranks, places = draw(st.integers(2, 4)), draw(st.integers(2, 4))
    row = st.lists(st.integers(1, 60), min_size=places, max_size=places)
    units = draw(st.lists(row, min_size=ranks, max_size=ranks))
    padding = draw(
        st.lists(st.lists(st.integers(0, 60), min_size=places, max_size=places), min_size=ranks, max_size=ranks)
    )
    return Plan(units=units, padding=padding)


@settings(max_examples=250, deadline=None)
@given(plans(), st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
def test_planted_mistakes_are_never_misnamed(plan: Plan, names: list[str]) -> None:
    assume(possible(names))
    if any(name.startswith("padding") for name in names):
        assume(sum(map(sum, plan.padding)) > 0)
    measured = evidence([planted(names, plan)] * 2, seed=SEED)
    found = diagnose(measured)
    sets = [set(one) for one in found.alternatives] or [names_of(found)]
    assert found.status != "unexplained", (names, found.reasoning)
    if named(names) in sets:
        return
    # Another explanation is right only if it makes the same gradients, with no more mistakes.
    assert all(len(one) <= len(names) and _same_gradients(one, found, plan, measured) for one in sets), (names, sets)


def _same_gradients(names: set[str], found: Diagnosis, plan: Plan, measured: Evidence) -> bool:
    numbers = {cause.name: cause.parameters for cause in found.causes}
    whose = numbers.get("local_count_as_global", {}).get("count_of_rank", 0)
    spellings = [names, names | {"missing_world_size"}] if "local_count_as_global" in names else [names]
    return any(
        all(
            torch.allclose(mine.observed[rank][name], theirs.observed[rank][name], rtol=1e-6, atol=1e-9)
            for mine, theirs in zip(measured.steps, again.steps, strict=True)
            for rank in range(plan.ranks)
            for name in PARAMETERS
        )
        for again in (evidence([planted(one, plan, count_of_rank=whose)] * 2, seed=SEED) for one in spellings)
    )


@settings(max_examples=250, deadline=None)
@given(plans(), st.integers(0, 2**32), st.booleans())
def test_arbitrary_weights_are_solved_and_not_named(plan: Plan, seed: int, local: bool) -> None:
    random = Random(seed)
    weights = {(r, m): random.uniform(0.1, 3.0) / plan.whole for r in range(plan.ranks) for m in range(plan.places)}
    measured = evidence(
        [replace(plan, factor=lambda _plan, r, m: plan.ranks * weights[r, m], reduced_after=() if local else None)]
    )
    found = diagnose(measured)
    assert found.status == "unexplained"
    assert names_of(found) == ({"unsynchronised_step"} if local else set())
    assert found.weights is not None
    for (rank, place), weight in weights.items():
        assert found.weights.observed[rank][place] == pytest.approx(weight * (plan.ranks if local else 1), rel=1e-9)


def test_world_size_equal_to_accumulation_is_ambiguous() -> None:
    plan = Plan(units=((3, 5), (7, 2)), padding=((0, 0), (0, 0)))
    found = read(["missing_world_size"], plan)
    assert found.status == "ambiguous"
    assert sorted(found.alternatives) == [["extra_accumulation_division"], ["missing_world_size"]]
    assert found.suggestion == "Run with 3 micro-batches per rank."
    changed = replace(plan, units=((3, 5, 4), (7, 2, 6)), padding=((0,) * 3,) * 2)
    assert names_of(read(["missing_world_size"], changed)) == {"missing_world_size"}


def test_equal_counts_ask_for_other_counts() -> None:
    found = read(["extra_world_size"], Plan(units=((3,), (3,)), padding=((0,), (0,))))
    assert (found.status, found.causes[0].name) == ("ambiguous", "extra_world_size")
    assert found.suggestion == "Give the ranks and micro-batches different numbers of units."


def test_one_rank_weighs_more_in_words() -> None:
    found = read(["rank_mean"], Plan(units=((12,), (36,)), padding=((0,), (0,))))
    assert "Rank 0's tokens weigh 3.0 times those of rank 1." in found.causes[0].explanation


def test_unreduced_parameters_are_listed_beside_another_mistake() -> None:
    found = read(["unreduced_parameters", "mean_of_means"], Plan())
    causes = {cause.name: cause.parameters for cause in found.causes}
    assert sorted(causes["unreduced_parameters"]["parameters"]) == ["head", "layer.bias"]
    assert causes["mean_of_means"] == {}


def test_parameters_of_another_loss_are_listed() -> None:
    def doubled(_step: int, gradient: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: value * (2.37 if name == "head" else 1) for name, value in gradient.items()}

    found = diagnose(evidence([Plan(after=doubled)]))
    assert found.status == "unexplained"
    assert any("head" in sentence for sentence in found.reasoning)


@pytest.mark.parametrize("counted", [False, True])
def test_repeated_micro_batch_is_named_with_its_place(counted: bool) -> None:
    whole = 20 + (7 if counted else 0)
    found = diagnose(evidence([Plan(factor=lambda _plan, _r, m: 2 * (2 if m == 0 else 1) / whole)]))
    assert [(cause.name, cause.parameters) for cause in found.causes] == [("repeated_samples", {"micro_batch": 0})]


def test_left_over_gradient_of_an_unchanged_window_is_not_called_a_factor() -> None:
    # The same window at the same parameters: what is left over is a multiple of the right gradient.
    whole = evidence([planted(["stale_gradients"], Plan())])
    right = whole.steps[0].observed
    steps = [
        replace(
            whole.steps[0],
            step=number,
            observed=[{name: number * value for name, value in row.items()} for row in right],
            before=[{name: (number - 1) * value for name, value in row.items()} for row in right] if number > 1 else (),
        )
        for number in (1, 2, 3)
    ]
    two, three = (diagnose(replace(whole, steps=steps[:count])) for count in (2, 3))
    assert two.status == "ambiguous"
    assert ["stale_gradients"] in two.alternatives
    assert "3 steps" in two.suggestion
    assert (three.status, names_of(three)) == ("identified", {"stale_gradients"})


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (((4, 4, 4, 4), (4, 4, 4, 4)), {"short_last_window"}),
        (((4, 9, 2, 5), (7, 3, 6, 8)), {"mean_of_means", "short_last_window"}),
    ],
)
def test_short_last_window_divided_by_the_usual_number(rows: Any, names: set[str]) -> None:
    def means(divisor: int) -> Factor:
        return lambda plan, rank, place: 1 / (divisor * plan.units[rank][place])

    none = ((0,) * 4,) * 2
    full = Plan(units=rows, padding=none, factor=means(4))
    short = Plan(units=tuple(row[:2] for row in rows), padding=((0, 0), (0, 0)), factor=means(4))
    found = diagnose(evidence([full, full, short]))
    assert (found.status, names_of(found)) == ("identified", names)
    mended = replace(short, factor=means(2))
    assert names_of(diagnose(evidence([full, full, mended]))) == names - {"short_last_window"}
