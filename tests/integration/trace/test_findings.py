"""One script per mistake is named, its correct twin is not: real ranks, real probe, real judge."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.traced import Ranks, findings, ranks
from trainer.kinds.trace.params import TraceParams

WRONG = {
    "mean_of_means": {"mean_of_means"},
    "rank_mean": {"rank_mean"},
    "microbatch_denominator": {"microbatch_denominator"},
    "missing_world_size": {"missing_world_size"},
    "extra_world_size": {"extra_world_size"},
    "extra_accumulation_division": {"extra_accumulation_division"},
    "missing_accumulation_division": {"missing_accumulation_division"},
    "class_weights": {"class_weights"},
    "short_last_window": {"short_last_window"},
    "dropped_microbatch": {"dropped_microbatch"},
    "clipped_before_unscale": {"clipped_before_unscale"},
    "sync_on_wrong_microbatch": {"sync_on_wrong_microbatch", "gradients_differ", "parameters_differ"},
    "unsynchronised_step": {"unsynchronised_step", "gradients_differ", "parameters_differ"},
    "uneven_last_batch": {"uneven_last_batch"},
    "unexplained": {"unexplained"},
    "skipped_on_one_rank": {
        "skipped_on_one_rank",
        "unequal_steps",
        "loss_scales_differ",
        "gradients_differ",
        "parameters_differ",
    },
}
"""Case of language.py -> what is wrong with it."""
APART = {
    "unreduced_parameters": {"unreduced_parameters"},
    "parameters_differ": {"parameters_differ"},
    "gradients_differ": {"gradients_differ", "parameters_differ"},
    "same_file_written": {"same_file_written"},
}
"""Case of agreement.py -> what is wrong with it."""
RIGHT = (
    "right_sum",
    "right_mean",
    "short_last_window_mended",
    "dropped_microbatch_mended",
    "clipped_before_unscale_mended",
)
PICTURES_WRONG = {
    "buffers_moved_twice": {"buffers_moved_twice"},
    "same_data_on_all_ranks": {"same_data_on_all_ranks"},
    "same_order_every_epoch": {"same_order_every_epoch"},
    "sharded_twice": {"sharded_twice"},
    "missing_samples": {"missing_samples"},
    "unequal_steps": {"unequal_steps", "dropped_microbatch"},
    "unequal_forwards": {"unequal_forwards"},
}
PICTURES_NOTES = {
    "right": {"buffers_differ"},
    "right_workers": {"buffers_differ"},
    "right_persistent_workers": {"buffers_differ"},
    "different_random_streams": {"buffers_differ"},
    "same_random_stream": {"buffers_differ", "same_random_stream"},
    "different_initial_weights": {"buffers_differ", "different_initial_weights"},
    "repeated_samples": {"buffers_differ", "repeated_samples"},
    "padded_evaluation": {"buffers_differ", "repeated_samples", "padded_evaluation"},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Ranks]:
    with ranks() as started:
        yield started


@pytest.mark.torchrun
@pytest.mark.parametrize("case", WRONG)
def test_mistake_is_named(server: Ranks, case: str, tmp_path: Path) -> None:
    result = server.judged("language", case, folder=tmp_path / "trace")
    assert result.verdict == "fail"
    assert findings(result, "wrong") == WRONG[case]
    assert findings(result, "waste") == set()
    named = next(item for item in result.summary["findings"] if item["name"] == case)
    assert named["suggestion"]
    assert {Path(place["file"]).name for place in named["places"]} <= {"language.py"}


@pytest.mark.torchrun
@pytest.mark.parametrize("case", APART)
def test_ranks_that_part_ways_are_named(server: Ranks, case: str, tmp_path: Path) -> None:
    broken = server.judged("agreement", case, folder=tmp_path / "broken")
    assert (broken.verdict, findings(broken, "wrong", "waste")) == ("fail", APART[case])
    mended = server.judged("agreement", f"{case}_mended", folder=tmp_path / "mended")
    assert (mended.verdict, findings(mended)) == ("pass", set())


@pytest.mark.torchrun
@pytest.mark.parametrize("case", RIGHT)
def test_right_twin_passes(server: Ranks, case: str, tmp_path: Path) -> None:
    result = server.judged("language", case, folder=tmp_path / "trace")
    assert (result.verdict, findings(result)) == ("pass", set())


@pytest.mark.torchrun
@pytest.mark.parametrize("case", PICTURES_WRONG)
def test_mistake_with_pictures_is_named(server: Ranks, case: str, tmp_path: Path) -> None:
    result = server.judged("images", case, folder=tmp_path / "trace")
    assert result.verdict == "fail"
    assert findings(result, "wrong") == PICTURES_WRONG[case]


@pytest.mark.torchrun
@pytest.mark.parametrize("case", PICTURES_NOTES)
def test_note_fails_nothing(server: Ranks, case: str, tmp_path: Path) -> None:
    result = server.judged("images", case, folder=tmp_path / "trace")
    assert result.verdict == "pass"
    assert findings(result) == findings(result, "note") == PICTURES_NOTES[case]


@pytest.mark.torchrun
def test_waste_fails_only_where_it_is_asked_for(server: Ranks, tmp_path: Path) -> None:
    result = server.judged("language", "extra_syncs", folder=tmp_path / "lenient")
    assert (result.verdict, findings(result)) == ("pass", {"extra_syncs"})
    strict = server.judged("language", "extra_syncs", folder=tmp_path / "strict", params=TraceParams(fail_on="waste"))
    assert strict.verdict == "fail"


@pytest.mark.torchrun
def test_accepted_finding_stays_visible(server: Ranks, tmp_path: Path) -> None:
    params = TraceParams(allow=["mean_of_means"])
    result = server.judged("language", "mean_of_means", folder=tmp_path / "trace", params=params)
    assert (result.verdict, findings(result)) == ("pass", {"mean_of_means"})
    assert "allow" in next(check.detail for check in result.checks if check.name == "token_weights")


@pytest.mark.torchrun
def test_scale_is_a_note_where_the_optimizer_does_not_feel_it(server: Ranks, tmp_path: Path) -> None:
    result = server.judged("language", "missing_world_size_adam", folder=tmp_path / "trace")
    assert (result.verdict, findings(result, "note")) == ("pass", {"missing_world_size"})


@pytest.mark.torchrun
def test_gradients_cleared_by_hand_weigh_nothing(server: Ranks, tmp_path: Path) -> None:
    result = server.judged("language", "cleared_by_hand", folder=tmp_path / "trace")
    assert findings(result, "wrong") == {"dropped_microbatch"}
    weights = [cell["weight"] for cell in result.summary["windows"][0]["cells"] if cell["rank"] == 0]
    assert weights == pytest.approx([0.0, 1 / 80, 1 / 80, 1 / 80], rel=1e-6)


@pytest.mark.torchrun
def test_leftovers_of_an_epoch_are_a_note(server: Ranks, tmp_path: Path) -> None:
    result = server.judged("language", "leftover_microbatches", folder=tmp_path / "trace")
    assert "leftover_microbatches" in findings(result, "note")
    assert findings(result, "wrong") == set()


@pytest.mark.torchrun
def test_loss_in_a_compiled_region_is_not_guessed(server: Ranks, tmp_path: Path) -> None:
    result = server.judged("language", "compiled", folder=tmp_path / "trace")
    assert result.verdict == "inconclusive"
    assert [check.name for check in result.checks if check.passed is None] == ["token_weights", "loss_scale"]


@pytest.mark.torchrun
def test_data_without_indices_is_no_pass(server: Ranks, tmp_path: Path) -> None:
    result = server.judged("images", "iterable", folder=tmp_path / "trace")
    assert result.verdict == "inconclusive"
    assert [check.name for check in result.checks if check.passed is None] == ["samples"]


@pytest.mark.torchrun
@pytest.mark.parametrize(("expected", "passed"), [(1.0, True), (4.0, False)])
def test_expected_number_is_a_check(server: Ranks, expected: float, *, passed: bool, tmp_path: Path) -> None:
    params = TraceParams(expect={"syncs_per_step": expected})
    result = server.judged("language", "right_sum", folder=tmp_path / "trace", params=params)
    check = next(check for check in result.checks if check.name == "expect_syncs_per_step")
    assert (check.passed, check.measured, check.limit) == (passed, 1.0, expected)


@pytest.mark.torchrun
def test_weights_are_those_of_the_averaged_gradient(server: Ranks, tmp_path: Path) -> None:
    """Of the mean of means: 1 / (ranks x micro-batches x targets of the micro-batch)."""
    result = server.judged("language", "mean_of_means", folder=tmp_path / "trace")
    window = result.summary["windows"][0]
    assert len(window["cells"]) == 8
    for cell in window["cells"]:
        assert cell["weight"] == pytest.approx(1 / (2 * 4 * cell["units"]), rel=1e-6)
