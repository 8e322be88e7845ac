"""Comparison by component: the limit, NaN, every rank, and faults that averaging over ranks would hide."""

import math

import pytest
import torch

from trainer.kinds.token_parity.comparison import EDGES, compare


def _one(reference: float, *found: float, atol: float = 1e-6, rtol: float = 1e-4) -> int:
    expected = {"w": torch.tensor([reference], dtype=torch.float64)}
    ranks = [{"w": torch.tensor([value], dtype=torch.float64)} for value in found]
    return compare(expected, ranks, atol=atol, rtol=rtol).violations


@pytest.mark.parametrize(("reference", "limit"), [(0.0, 1e-6), (1.0, 1.01e-4), (-1.0, 1.01e-4)])
def test_limit_depends_on_the_reference(reference: float, limit: float) -> None:
    assert _one(reference, reference + 0.999 * limit) == 0
    assert _one(reference, reference + 1.001 * limit) == 1


def test_exact_tolerance_counts_true_violations() -> None:
    reference = {"w": torch.arange(10.0)}
    found = {"w": torch.arange(10.0) + torch.tensor([0.0, 1e-5] * 5)}
    assert compare(reference, [reference, found], atol=1e-12, rtol=0).violations == 5
    assert compare(reference, [reference, reference], atol=0, rtol=0).violations == 0


def test_opposite_ranks_do_not_cancel() -> None:
    assert _one(1.0, 1.3, 0.7) == 1
    assert _one(1.0, (1.3 + 0.7) / 2) == 0


def test_one_component_on_two_ranks_counts_once() -> None:
    assert _one(0.0, 1.0, 2.0) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_components_are_outside(value: float) -> None:
    assert _one(0.0, 0.0, value) == 1


def test_nan_is_reported_as_the_error() -> None:
    found = compare({"w": torch.zeros(3)}, [{"w": torch.tensor([0.0, math.nan, 5.0])}], atol=1e-6, rtol=0)
    assert math.isnan(found.max_abs_error)
    assert (found.violations, sum(found.histogram)) == (2, 2)


def test_error_outside_is_the_largest_outside() -> None:
    # The largest error belongs to a large reference and is inside its limit of 50; a smaller one is outside.
    reference = {"a": torch.tensor([100.0, 1e-3]), "b": torch.tensor([2.0])}
    found = compare(reference, [{"a": torch.tensor([90.0, 2e-3]), "b": torch.tensor([2.5])}], atol=0, rtol=0.5)
    assert (found.max_abs_error, found.limit, found.violations) == (10.0, 50.0, 1)
    assert found.outside is not None
    assert found.outside.tensor == "a"
    assert found.outside.error == pytest.approx(1e-3)
    assert found.outside.limit == pytest.approx(5e-4)
    assert compare(reference, [reference], atol=0, rtol=0.5).outside is None
    broken = compare(reference, [{"a": torch.tensor([math.nan, 9.0]), "b": torch.tensor([2.5])}], atol=0, rtol=0.5)
    assert broken.outside is not None
    assert math.isnan(broken.outside.error)


def test_histogram_holds_every_component() -> None:
    errors = torch.tensor([0.0, 1e-14, 2e-13, 0.5, 100.0], dtype=torch.float64)
    found = compare({"w": torch.zeros(5)}, [{"w": errors}], atol=1, rtol=0)
    assert sum(found.histogram) == 5
    assert found.histogram[0] == 3
    assert found.histogram[-1] == 1
    assert EDGES[0] == pytest.approx(1e-13)


def test_factor_and_direction_are_told() -> None:
    reference = {"w": torch.tensor([1.0, 2.0, 3.0])}
    found = compare(reference, [{"w": reference["w"] / 2}, {"w": torch.tensor([3.0, 2.0, 1.0])}], atol=0, rtol=0)
    assert found.ratios[0] == pytest.approx(0.5)
    assert found.cosines[0] == pytest.approx(1)
    assert found.cosines[1] < 0.9


def test_missing_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rank 0: gradients missing or unexpected: \['b'\]"):
        compare({"w": torch.zeros(1)}, [{"w": torch.zeros(1), "b": torch.zeros(1)}], atol=0, rtol=0)
