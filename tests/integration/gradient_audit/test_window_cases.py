"""Public bug reports about windows, each right and broken, through real ranks; B6 and E2 are in test_bad_targets.py."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.target_lab import audited, observed, specs_of
from tests.targets.windows import ALL
from trainer.contract.diagnosis import Diagnosis
from trainer.contract.result import Check, Result

pytestmark = pytest.mark.torchrun
CLEAN = ("a8_width8", "a8_width16", "a11_right", "b3_mended", "b7_same_scale", "e1_no_rank_empty", "e3_finds_unused")
NAMED = {
    "a4_other_counts": {"rank_mean", "extra_world_size"},
    "a8_width8_counted": {"padding_in_denominator"},
    "a8_width16_counted": {"padding_in_denominator"},
    "a9_pieces_means": {"mean_of_means"},
    "a10_dropped": {"dropped_microbatch"},
    "a10_leaks": {"stale_gradients", "short_last_window"},
    "a11_clips": {"clipped_inside_window", "extra_syncs"},
    "b4_last_only": {"unreduced_parameters"},
    "b5_unused_missing": {"missing_world_size"},
    "b8_rebuilt_loses": {"dropped_microbatch"},
    "e1_empty_missing": {"missing_world_size"},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("windows") / "runs"


@pytest.fixture(scope="module")
def results(root: Path) -> Mapping[str, Result]:
    return audited(root, specs_of("tests.targets.windows", [target.name for target in ALL]))


def check(result: Result, name: str) -> Check:
    return next(item for item in result.checks if item.name == name)


def diagnosis(result: Result) -> Diagnosis:
    assert result.diagnosis is not None
    return result.diagnosis


def numbers(result: Result, cause: str) -> dict[str, Any]:
    return next(found.parameters for found in diagnosis(result).causes if found.name == cause)


def test_every_case_is_judged(results: Mapping[str, Result]) -> None:
    assert {*CLEAN, *NAMED, "b7_scales_differ"} == results.keys()


@pytest.mark.parametrize("name", CLEAN)
def test_right_code_passes(results: Mapping[str, Result], name: str) -> None:
    assert (results[name].verdict, diagnosis(results[name]).status) == ("pass", "clean")


@pytest.mark.parametrize(("name", "names"), NAMED.items())
def test_broken_twin_fails_and_is_named(results: Mapping[str, Result], name: str, names: set[str]) -> None:
    found = diagnosis(results[name])
    assert (results[name].verdict, check(results[name], "gradient_parity").passed) == ("fail", False)
    assert (found.status, {cause.name for cause in found.causes}) == ("identified", names)


def test_width_of_padding_changes_only_the_wrong_gradient(root: Path, results: object) -> None:
    """A8: the same tokens, padded to 8 and to 16."""
    found = {width: float(observed(root, f"a8_width{width}", 0)["w"]) for width in (8, 16)}
    wrong = {width: float(observed(root, f"a8_width{width}_counted", 0)["w"]) for width in (8, 16)}
    assert abs(found[8] - found[16]) < 1e-12
    assert wrong == pytest.approx({8: 52 / 48, 16: 52 / 96}, rel=1e-6)


def test_another_cut_changes_a_mean_of_means(root: Path, results: object) -> None:
    """A9: the right twins are in test_public_cases.py."""
    assert float(observed(root, "a9_pieces_means", 0)["w"]) == pytest.approx((2 + 19 / 8 + 3 + 20 / 6) / 4, rel=1e-6)


def test_incomplete_window_that_is_left_out_is_named_with_its_step(results: Mapping[str, Result]) -> None:
    """A10: dropped, and carried over into the next step."""
    assert numbers(results["a10_dropped"], "dropped_microbatch") == {"steps": [2]}
    assert numbers(results["a10_leaks"], "short_last_window") == {"micro_batches": 2, "divided_by": 4}


def test_clipping_after_every_pass_is_worked_out_by_hand(root: Path, results: Mapping[str, Result]) -> None:
    """A11: (3, 0) is clipped to (1, 0), then (1, 4) to (0.2425, 0.9701); the right gradient is (3, 4)."""
    right, wrong = (observed(root, name, 1)["weight"].tolist() for name in ("a11_right", "a11_clips"))
    assert right == pytest.approx([3.0, 4.0], rel=1e-6)
    assert wrong == pytest.approx([17**-0.5, 4 * 17**-0.5], rel=1e-5)
    assert numbers(results["a11_clips"], "clipped_inside_window")["norm"] == pytest.approx(1.0, rel=1e-5)


def test_parameters_of_an_earlier_micro_batch_are_listed(results: Mapping[str, Result]) -> None:
    """B4: only they are not reduced; the time of the reduction is right."""
    assert numbers(results["b4_last_only"], "unreduced_parameters") == {"parameters": ["first.weight"]}


def test_unused_parameters_are_listed_before_a_factor_is_blamed(results: Mapping[str, Result]) -> None:
    """B5."""
    assert "No gradient reached second.weight" in check(results["b5_unused_missing"], "gradient_parity").detail


def test_scales_that_differ_between_ranks_fail_from_the_first_step_on(results: Mapping[str, Result]) -> None:
    """B7: no single set of weights is left, so the weights are said per rank, and nothing is named."""
    result = results["b7_scales_differ"]
    assert [check(result, name).passed for name in ("gradient_parity", "ranks_agree")] == [False, False]
    found = diagnosis(result)
    assert (found.status, found.causes) == ("unexplained", [])
    words = " ".join(found.reasoning)
    assert "Wrong in steps 1, 2, right in the others." in words
    assert "In rank 0's gradient: Rank 0's tokens weigh 2.0 times those of rank 1." in words
    assert "In rank 1's gradient" in words


def test_window_that_loses_gradients_while_buckets_are_rebuilt(results: Mapping[str, Result]) -> None:
    """B8: the right twin with bucket views is in test_fixture_m.py."""
    assert numbers(results["b8_rebuilt_loses"], "dropped_microbatch") == {"steps": [0]}
