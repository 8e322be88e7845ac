"""Weights of tokens and their sum: a right script passes, each broken twin is named, at the places that do it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.traces import BACKWARD, CLIP, LINES, LOSS, SCRIPT, Rule, Script, check, judged, names, right

UNITS = ((3, 5, 4), (7, 2, 6))
WHOLE, RANKS, COLUMNS = 27, (12, 15), (10, 7, 10)
WORLD, COUNT = 2, 3
RULES: dict[str, tuple[str, Rule]] = {
    "mean_of_means": ("mean", lambda _r, _m: 1 / COUNT),
    "rank_mean": ("sum", lambda r, _m: 1 / RANKS[r]),
    "microbatch_denominator": ("sum", lambda _r, m: WORLD / (COUNT * COLUMNS[m])),
    "missing_world_size": ("sum", lambda _r, _m: 1 / WHOLE),
    "extra_world_size": ("sum", lambda _r, _m: WORLD * WORLD / WHOLE),
    "extra_accumulation_division": ("sum", lambda _r, _m: WORLD / WHOLE / COUNT),
    "missing_accumulation_division": ("sum", lambda _r, _m: WORLD * COUNT / WHOLE),
    "local_count_as_global": ("sum", lambda _r, _m: WORLD / RANKS[0]),
}
SHAPES = ("mean_of_means", "rank_mean", "microbatch_denominator")


def repeated(count: int, *arguments: Any, **options: Any) -> Callable[[Script], None]:
    """Return what writes the same window several times."""

    def windows(made: Script) -> None:
        for _ in range(count):
            made.window(*arguments, **options)

    return windows


def script(folder: Path, windows: Callable[[Script], object], **options: Any) -> Script:
    made = Script(folder, **options)
    made.loader()
    made.begin_pass(0, 0)
    windows(made)
    made.end_pass(0, 0, [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]])
    made.digests("parameters", {"w": "p"}, model=0, step=made.steps)
    made.digests("buffers", {}, model=0, step=made.steps)
    return made


@pytest.mark.parametrize("name", RULES)
def test_mistake_is_named_and_the_right_twin_passes(tmp_path: Path, name: str) -> None:
    reduction, rule = RULES[name]
    broken = script(tmp_path / "broken", repeated(5, UNITS, rule, reduction=reduction))
    result = judged(broken)
    assert names(result) == {name: "wrong"}
    assert result.verdict == "fail"
    check_name = "token_weights" if name in SHAPES else "loss_scale"
    assert [item.name for item in result.checks if item.passed is False] == [check_name]
    (finding,) = result.summary["findings"]
    assert finding["windows"] == 5
    assert finding["places"] == [{"file": SCRIPT, "line": LINES[LOSS]}, {"file": SCRIPT, "line": LINES[BACKWARD]}]
    assert finding["suggestion"].endswith(".")
    fixed = judged(script(tmp_path / "right", repeated(5, UNITS)))
    assert (names(fixed), fixed.verdict) == ({}, "pass")


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_adaptive_optimizer_makes_a_scale_a_note_and_says_why(tmp_path: Path, optimizer: str) -> None:
    result = judged(
        script(tmp_path, lambda made: made.window(UNITS, RULES["missing_world_size"][1]), optimizer=optimizer)
    )
    (finding,) = result.summary["findings"]
    adaptive = optimizer == "AdamW"
    assert finding["severity"] == ("note" if adaptive else "wrong")
    assert ("AdamW divides every gradient" in finding["detail"]) is adaptive
    assert result.verdict == ("pass" if adaptive else "fail")


def test_adaptive_optimizer_excuses_no_uneven_weights(tmp_path: Path) -> None:
    reduction, rule = RULES["mean_of_means"]
    made = script(tmp_path, lambda made: made.window(UNITS, rule, reduction=reduction), optimizer="AdamW")
    assert names(judged(made)) == {"mean_of_means": "wrong"}


def test_weights_are_those_of_the_averaged_gradient(tmp_path: Path) -> None:
    result = judged(script(tmp_path, lambda made: made.window(UNITS)))
    (window,) = result.summary["windows"]
    assert (window["epoch"], window["step"], window["syncs"], window["micro_batches"]) == (0, 1, 1, 3)
    assert [(cell["rank"], cell["micro_batch"], cell["units"]) for cell in window["cells"]] == [
        (rank, place, UNITS[rank][place]) for rank in range(2) for place in range(3)
    ]
    assert all(cell["weight"] == pytest.approx(1 / WHOLE, rel=1e-12) for cell in window["cells"])


def test_factor_of_a_grad_scaler_is_divided_out(tmp_path: Path) -> None:
    scaled: Rule = lambda _r, _m: 1024 * WORLD / WHOLE  # noqa: E731
    assert names(judged(script(tmp_path / "a", lambda made: made.window(UNITS, scaled, scale=1024.0)))) == {}
    assert "unexplained" in names(judged(script(tmp_path / "b", lambda made: made.window(UNITS, scaled))))


def test_clipping_before_unscaling(tmp_path: Path) -> None:
    scaled: Rule = lambda _r, _m: 1024 * WORLD / WHOLE  # noqa: E731
    for before in (True, False):
        clip = {"site": CLIP, "before_unscale": before, "after": 3}
        made = script(tmp_path / str(before), repeated(1, UNITS, scaled, scale=1024.0, clip=clip))
        result = judged(made)
        assert names(result) == ({"clipped_before_unscale": "wrong"} if before else {})
        if before:
            assert result.summary["findings"][0]["places"] == [{"file": SCRIPT, "line": LINES[CLIP]}]


def test_class_weights_do_not_cancel(tmp_path: Path) -> None:
    mean: Rule = lambda _r, _m: 1 / 2  # noqa: E731
    sums = ((2.5, 4.0), (3.5, 2.0))
    weighted = {"weighted": True}
    made = script(tmp_path, lambda made: made.window(sums, mean, reduction="mean", loss=weighted))
    assert names(judged(made)) == {"class_weights": "wrong"}
    even = script(tmp_path / "b", lambda made: made.window(((3, 3), (3, 3)), mean, reduction="mean", loss=weighted))
    assert names(judged(even)) == {}


def test_cleared_micro_batch_is_dropped(tmp_path: Path) -> None:
    made = script(tmp_path, lambda made: made.window(UNITS, cleared=[(0, 0), (1, 0)]))
    result = judged(made)
    assert names(result) == {"dropped_microbatch": "wrong"}
    assert result.summary["findings"][0]["measured"]["ratio"] == "Infinity"
    assert result.summary["windows"][0]["cells"][0]["weight"] == 0


def test_short_last_window_with_the_usual_divisor(tmp_path: Path) -> None:
    def windows(made: Script, divisor: int | None) -> None:
        for _ in range(4):
            made.window(((4, 4, 4, 4), (4, 4, 4, 4)), lambda _r, _m: 1 / 4, reduction="mean")
        made.window(((4, 4, 4), (4, 4, 4)), lambda _r, _m: 1 / (divisor or 3), reduction="mean", why="epoch end")

    result = judged(script(tmp_path / "a", lambda made: windows(made, 4)))
    assert names(result) == {"short_last_window": "wrong"}
    assert "has 3 micro-batches but is divided by 4" in result.summary["findings"][0]["detail"]
    assert names(judged(script(tmp_path / "b", lambda made: windows(made, None)))) == {}


@pytest.mark.parametrize("late", [True, False])
def test_uneven_last_batch_is_a_note_only_at_the_end_of_an_epoch(tmp_path: Path, late: bool) -> None:
    full, short = ((4, 4), (4, 4)), ((4, 1), (4, 3))
    mean: Rule = lambda _r, _m: 1 / 2  # noqa: E731

    def windows(made: Script) -> None:
        made.window(full, mean, reduction="mean")
        for units in (full, short) if late else (short, full):
            # The rows of the smaller batch are what tells it from unequal numbers of targets.
            made.window(units, mean, reduction="mean", rows=3 if units is short else 4)

    assert names(judged(script(tmp_path, windows))) == {"uneven_last_batch": "note" if late else "wrong"}


def test_unexplained_weights_are_shown(tmp_path: Path) -> None:
    odd: Rule = lambda r, m: (1 + 0.37 * r + 0.11 * m * m) * WORLD / WHOLE  # noqa: E731
    result = judged(script(tmp_path, lambda made: made.window(UNITS, odd)))
    assert names(result)["unexplained"] == "wrong"
    assert result.headline == "Weight of one unit, per rank and micro-batch"
    (heat,) = [panel for panel in result.panels if panel.type == "heat"]
    assert heat.values[1][2] == pytest.approx((1 + 0.37 + 0.44) / WHOLE, rel=1e-4)
    assert heat.expected is not None
    assert heat.expected[1][2] == pytest.approx(1 / WHOLE, rel=1e-4)


def test_constant_factor_of_the_scripts_own_is_a_note(tmp_path: Path) -> None:
    factor: Rule = lambda _r, _m: 0.37 * WORLD / WHOLE  # noqa: E731
    made = script(tmp_path, repeated(2, UNITS, factor))
    assert names(judged(made)) == {"unexplained": "note"}


def test_two_and_two_is_ambiguous_and_the_likelier_cause_is_named(tmp_path: Path) -> None:
    units = ((3, 5), (7, 2))
    by_sum = judged(script(tmp_path / "a", lambda made: made.window(units, lambda _r, _m: 1 / 17)))
    assert names(by_sum) == {"missing_world_size": "wrong"}
    assert by_sum.summary["findings"][0]["measured"]["alternatives"] == ["extra_accumulation_division"]
    mean: Rule = lambda _r, _m: 1 / 4  # noqa: E731
    by_mean = judged(script(tmp_path / "b", lambda made: made.window(((4, 4), (4, 4)), mean, reduction="mean")))
    assert names(by_mean) == {"extra_accumulation_division": "wrong"}


def test_unit_sample_counts_rows(tmp_path: Path) -> None:
    # Every micro-batch is averaged over its tokens: uneven per token, even per sample with equal batches.
    made = script(tmp_path, lambda made: made.window(UNITS, lambda _r, _m: 1 / 3, reduction="mean", rows=4))
    assert names(judged(made)) == {"mean_of_means": "wrong"}
    result = judged(made, unit="sample")
    assert names(result) == {}
    assert result.summary["windows"][0]["cells"][0] == {"rank": 0, "micro_batch": 0, "units": 4, "weight": 1 / 24}
    blind = script(tmp_path / "blind", lambda made: made.window(UNITS, rows=None))
    assert check(judged(blind, unit="sample"), "token_weights").passed is None


def test_weights_of_single_units_are_the_scripts_own(tmp_path: Path) -> None:
    loss = {"least": 0.01, "most": 0.5}
    result = judged(script(tmp_path, lambda made: made.window(UNITS, reduction="none", loss=loss)))
    assert check(result, "token_weights").passed is None
    assert "different weights" in check(result, "token_weights").detail


def test_losses_added_up_are_judged_each_by_its_shape(tmp_path: Path) -> None:
    def auxiliary(factor: float) -> dict[str, Any]:
        return {"site": 7, "reduction": "sum", "units": 2, "factor": factor, "value": 0.5}

    made = script(tmp_path / "a", lambda made: made.window(UNITS, also=[auxiliary(0.01)]))
    result = judged(made)
    assert names(result) == {}
    assert [item.name for item in result.checks if item.name == "loss_scale"] == []
    assert any("Several losses" in text for text in result.limits)
    reduction, rule = RULES["mean_of_means"]
    broken = script(tmp_path / "b", lambda made: made.window(UNITS, rule, reduction=reduction, also=[auxiliary(0.01)]))
    assert names(judged(broken)) == {"mean_of_means": "wrong"}


def test_loss_that_cannot_be_weighed_leaves_the_sum_open(tmp_path: Path) -> None:
    # Half of a cross entropy next to a divergence does not mean a missing world size.
    made = script(tmp_path, lambda made: made.window(UNITS, lambda _r, _m: 0.5 * WORLD / WHOLE))
    assert names(judged(made)) == {"missing_world_size": "wrong"}
    for totals in made.totals:
        totals["unseen"] = {"kl_div": 3}
    result = judged(made)
    assert names(result) == {}
    assert "loss_scale" not in [item.name for item in result.checks]
    assert "kl_div was called 3 times" in check(result, "coverage").detail


def test_step_without_a_backward_changes_nothing(tmp_path: Path) -> None:
    made = right(tmp_path)
    made.window([[], []], lambda _r, _m: 0.0, synced=[])
    made.patterns[0, 0, 0, 0][0] += 90
    assert names(judged(made, expect={"syncs_per_step": 1})) == {}
    assert check(judged(made, expect={"syncs_per_step": 1}), "expect_syncs_per_step").passed is True


def test_unseen_loss_is_inconclusive_never_a_pass(tmp_path: Path) -> None:
    result = judged(script(tmp_path, lambda made: made.window(UNITS, unseen=True)))
    assert result.verdict == "inconclusive"
    assert check(result, "token_weights").passed is None
    assert "a backward pass without a loss that was seen" in " ".join(result.summary["coverage"]["not_seen"])


def test_second_optimizer_may_clear_what_it_does_not_use(tmp_path: Path) -> None:
    made = right(tmp_path)
    made.all("optimizer", optimizer=1, name="SGD", site=3)
    for rank in range(2):
        window = next(item for item in made.records[rank] if item["record"] == "window")
        other = [{**cell, "cleared": True} for cell in window["cells"]]
        own = [{**cell, "place": 7} for cell in window["cells"]]
        fields = {**window, "optimizer": 1, "cells": [*other, *own], "micro_batches": 6, "scales": []}
        made.add(rank, fields.pop("record"), **fields)
    assert names(judged(made)) == {}
