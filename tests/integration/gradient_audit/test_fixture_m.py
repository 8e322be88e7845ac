"""The whole table of fixture M through real ranks: the values as fractions, the verdicts, and the names."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pytest

from tests.support.target_lab import audited, observed, specs_of
from tests.targets.fixture_m import Table
from tests.targets.table import CORRECT, VALUES, WRONG
from trainer.contract.result import Result

pytestmark = pytest.mark.torchrun
NAMES = {
    "mean_of_means": {"mean_of_means"},
    "rank_mean": {"rank_mean"},
    "missing_world_size": {"missing_world_size"},
    "extra_world_size": {"extra_world_size"},
    "extra_accumulation_division": {"extra_accumulation_division"},
    "both_missing": {"missing_world_size", "extra_accumulation_division"},
    "means_not_divided": {"mean_of_means", "missing_accumulation_division"},
    "means_times_world": {"mean_of_means", "missing_accumulation_division", "extra_world_size"},
    "means_divided_times_world": {"mean_of_means", "extra_world_size"},
    "microbatch_denominator": {"microbatch_denominator"},
    "local_count_as_global": {"local_count_as_global"},
    "padding_in_denominator": {"padding_in_denominator"},
    "padding_in_loss": {"padding_in_denominator", "padding_in_loss"},
    "hook_sums": {"extra_world_size"},
    "last_dropped": {"dropped_microbatch"},
    "cleared_inside": {"dropped_microbatch"},
    "never_synchronised": {"unsynchronised_step"},
    "first_synchronises": {"sync_on_wrong_microbatch"},
    "always_synchronised": {"extra_syncs"},
    "only_backward_quiet": {"extra_syncs"},
    "stale": {"stale_gradients"},
    "reduced_loss": {"missing_world_size"},
    "clipped_early": {"clipped_inside_window"},
    "clipped_inside": {"clipped_inside_window"},
    "clipped_at_the_end": {"clipped_gradients"},
}
"""Names that must be found, no more and no less."""
LINES = ("gradient_parity", "ranks_agree", "negative_control", "sync_count")
RIGHT_VALUE = ("always_synchronised", "only_backward_quiet", "reports_three_times")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("m") / "runs"


@pytest.fixture(scope="module")
def results(root: Path) -> Mapping[str, Result]:
    return audited(root, specs_of("tests.targets.table", [*CORRECT, *WRONG]))


def passed(result: Result, name: str) -> bool | None:
    return next(check.passed for check in result.checks if check.name == name)


def near(value: float, fraction: Fraction) -> bool:
    return abs(value - float(fraction)) <= 1e-6 * abs(float(fraction))  # inputs are float32 before they are doubles


@pytest.mark.parametrize("name", CORRECT)
def test_right_code_passes_in_every_spelling(results: Mapping[str, Result], root: Path, name: str) -> None:
    result = results[name]
    assert (result.verdict, result.diagnosis and result.diagnosis.status) == ("pass", "clean")
    assert [passed(result, line) for line in LINES] == [True] * 4
    for rank in (0, 1):
        assert near(float(observed(root, name, rank)["w"]), Table.REFERENCE)


@pytest.mark.parametrize("name", WRONG)
def test_every_mistake_fails(results: Mapping[str, Result], name: str) -> None:
    assert results[name].verdict == "fail"
    assert passed(results[name], "gradient_parity") is (name in RIGHT_VALUE)


@pytest.mark.parametrize(("name", "value"), VALUES.items())
def test_wrong_gradients_are_those_of_the_table(root: Path, results: object, name: str, value: Fraction) -> None:
    for rank in (0, 1):
        assert near(float(observed(root, name, rank)["w"]), value)


def test_without_synchronisation_every_rank_has_its_own(root: Path, results: Mapping[str, Result]) -> None:
    assert near(float(observed(root, "never_synchronised", 0)["w"]), Fraction(23, 10))
    assert near(float(observed(root, "never_synchronised", 1)["w"]), Fraction(29, 10))
    assert passed(results["never_synchronised"], "ranks_agree") is False


@pytest.mark.parametrize("name", ["always_synchronised", "only_backward_quiet"])
def test_too_many_synchronisations_are_counted(results: Mapping[str, Result], name: str) -> None:
    check = next(check for check in results[name].checks if check.name == "sync_count")
    assert (check.measured, check.passed) == (3, False)
    assert results[name].summary["reductions"] == [[[0, 1, 2]] * 3] * 2


def test_misplaced_synchronisation_is_located(results: Mapping[str, Result]) -> None:
    assert results["first_synchronises"].summary["reductions"] == [[[0]] * 3] * 2
    assert passed(results["first_synchronises"], "sync_count") is False


@pytest.mark.parametrize(("name", "names"), NAMES.items())
def test_mistakes_are_named(results: Mapping[str, Result], name: str, names: set[str]) -> None:
    diagnosis = results[name].diagnosis
    assert diagnosis is not None
    assert (diagnosis.status, {cause.name for cause in diagnosis.causes}) == ("identified", names)


def test_clipping_inside_the_window_is_measured(results: Mapping[str, Result]) -> None:
    """A11: gradients are watched from one backward pass to the next, so the factors are known and not guessed."""
    for name, times in (("clipped_early", 12), ("clipped_inside", 12)):
        diagnosis = results[name].diagnosis
        assert diagnosis is not None
        assert diagnosis.causes[0].parameters["norm"] == pytest.approx(0.5, rel=1e-5)
        assert diagnosis.causes[0].parameters["times"] == times
        assert "After backward pass 0 of step 0 (both counted from 0), rank 0" in " ".join(diagnosis.reasoning)


def test_clipping_by_value_is_no_weighting_and_its_place_is_named(results: Mapping[str, Result]) -> None:
    diagnosis = results["clipped_by_value"].diagnosis
    assert diagnosis is not None
    assert (diagnosis.status, diagnosis.causes) == ("unexplained", [])
    assert "changed its gradients before the next one, and not by one factor" in " ".join(diagnosis.reasoning)
    assert "between the backward passes" in diagnosis.suggestion


def test_left_over_gradients_show_from_the_second_window_on(root: Path, results: object) -> None:
    found = [float(observed(root, "stale", 0, step)["w"]) for step in range(3)]
    assert all(near(value, Fraction(13, 5) * (step + 1)) for step, value in enumerate(found))


def test_logging_fault_is_no_gradient_fault(results: Mapping[str, Result]) -> None:
    result = results["reports_three_times"]
    assert (passed(result, "gradient_parity"), passed(result, "reported_loss")) == (True, False)
    assert result.diagnosis is not None
    assert result.diagnosis.status == "clean"


def test_right_value_of_a_loss_is_no_evidence_for_its_gradient(results: Mapping[str, Result]) -> None:
    """A15: the loss is all-reduced before backward, so its value is that of all ranks and its gradient is not."""
    result = results["reduced_loss"]
    assert (passed(result, "reported_loss"), passed(result, "gradient_parity")) == (True, False)


def test_sum_of_a_hook_is_named_with_its_mend(results: Mapping[str, Result]) -> None:
    """A14: the hook does not divide."""
    diagnosis = results["hook_sums"].diagnosis
    assert diagnosis is not None
    assert "communication hook" in diagnosis.causes[0].explanation
    assert "hook" in diagnosis.suggestion


def test_result_states_unit_and_counts(results: Mapping[str, Result]) -> None:
    result = results["correct"]
    assert (result.summary["unit"], result.summary["counts"][0]) == ("token", [[5, 1, 3], [2, 8, 1]])
    assert "token" in result.limits[0]
