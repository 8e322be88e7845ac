"""Synchronisations per step: once with the last micro-batch passes; every other way is named."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.traces import BACKWARD, LINES, OPTIMIZER, SCRIPT, Script, check, judged, names, right


def broken(folder: Path, change: Callable[[Script], object], **options: str) -> Script:
    script = right(folder, **options)
    change(script)
    return script


def test_right_twin_passes(tmp_path: Path) -> None:
    result = judged(right(tmp_path))
    assert (result.verdict, names(result)) == ("pass", {})
    assert check(result, "synchronisations").detail == "4 steps, synchronisations per step: 1"


@pytest.mark.parametrize("outside", [0, 2])
def test_extra_syncs_are_waste_and_say_when_the_forward_was_outside(tmp_path: Path, outside: int) -> None:
    made = broken(tmp_path, lambda script: script.window(synced=[0, 1, 2]))
    if outside:
        made = broken(tmp_path, _forward_outside)
    result = judged(made)
    (finding,) = [item for item in result.summary["findings"] if item["name"] == "extra_syncs"]
    assert finding["severity"] == "waste"
    assert finding["windows"] == 1
    assert finding["measured"]["syncs_per_step"] == 3
    assert ("outside no_sync()" in finding["detail"]) is bool(outside)
    assert finding["places"] == [{"file": SCRIPT, "line": LINES[BACKWARD]}]
    assert result.verdict == "pass"
    strict = judged(made, fail_on="waste")
    assert (strict.verdict, check(strict, "synchronisations").passed) == ("fail", False)


def _forward_outside(script: Script) -> None:
    script.window(synced=[0, 1, 2])
    for rank in script.records:
        cells = [item for item in rank if item["record"] == "window"][-1]["cells"]
        for cell in cells[:2]:
            cell["backward_sync"] = False


def test_sync_on_the_wrong_micro_batch(tmp_path: Path) -> None:
    result = judged(broken(tmp_path, lambda script: script.window(synced=[0])))
    assert names(result) == {"sync_on_wrong_microbatch": "wrong"}
    assert result.summary["findings"][0]["measured"] == {"synchronised": [1], "micro_batches": 3, "step": 5}
    last = result.summary["windows"][-1]["cells"]
    # What comes after the reduction enters its own rank's gradient undivided.
    assert last[1]["weight"] == pytest.approx(2 * last[0]["weight"])


def test_step_without_synchronisation(tmp_path: Path) -> None:
    result = judged(broken(tmp_path, lambda script: script.window(synced=[])))
    assert names(result) == {"unsynchronised_step": "wrong"}
    assert result.summary["findings"][0]["windows"] == 1


def test_windows_that_were_not_looked_at_are_counted_too(tmp_path: Path) -> None:
    made = broken(tmp_path, lambda script: script.window(synced=[0, 1, 2]))
    made.patterns[3, 3, 0, 0][0] += 40
    (finding,) = judged(made).summary["findings"]
    assert finding["windows"] == 41


@pytest.mark.parametrize(("cleared", "more", "severity"), [(0, 0, "note"), (1, 0, "wrong"), (0, 1, "wrong")])
def test_leftover_micro_batches_of_an_epoch(tmp_path: Path, cleared: int, more: int, severity: str) -> None:
    def windows(script: Script) -> None:
        units = [[4] * (3 + more)] * 2
        script.window(units, begin_epoch_at=1, cleared=[(0, 0), (1, 0)][: 2 * cleared])

    result = judged(broken(tmp_path, windows))
    assert names(result)["leftover_microbatches"] == severity
    finding = next(item for item in result.summary["findings"] if item["name"] == "leftover_microbatches")
    assert finding["measured"]["cleared"] == cleared


def test_gradients_that_another_optimizer_leaves_are_no_leftovers(tmp_path: Path) -> None:
    """Of a GAN: the generator's backward fills the discriminator's gradients, which are cleared before its own."""

    def windows(script: Script) -> None:
        script.window([[4, 4]] * 2, begin_epoch_at=1, cleared=[(0, 0), (1, 0)], factor=lambda _r, _m: 1 / 4)

    alone = broken(tmp_path / "alone", windows)
    assert "leftover_microbatches" in names(judged(alone))
    made = broken(tmp_path / "gan", windows)
    made.all("optimizer", optimizer=1, name="SGD", site=OPTIMIZER)
    for records in made.records:
        window = [item for item in records if item["record"] == "window"][-1]
        cell = {**window["cells"][0], "cleared": False}
        records.append({**window, "optimizer": 1, "cells": [cell], "micro_batches": 1, "step": 1})
    for totals in made.totals:
        totals["optimizer"] = {"open_cells": 1}
    assert "leftover_microbatches" not in names(judged(made))


def test_micro_batches_after_the_last_step_are_a_note(tmp_path: Path) -> None:
    made = right(tmp_path)
    for totals in made.totals:
        totals["optimizer"] = {"open_cells": 2}
    result = judged(made)
    assert (names(result), result.verdict) == ({"leftover_microbatches": "note"}, "pass")


def test_hook_that_cannot_be_counted_is_said_and_nothing_passes_unseen(tmp_path: Path) -> None:
    made = right(tmp_path)
    for rank in made.records:
        next(item for item in rank if item["record"] == "hook")["hook"] = "none: already taken"
    result = judged(made)
    assert check(result, "synchronisations").passed is None
    assert "already taken" in check(result, "coverage").detail


def test_hook_of_the_scripts_own_leaves_the_sum_open(tmp_path: Path) -> None:
    for hook, passed in (("allreduce_hook", True), ("my_sum_hook", None)):
        made = right(tmp_path / hook)
        for rank in made.records:
            next(item for item in rank if item["record"] == "hook")["hook"] = hook
        result = judged(made)
        assert check(result, "synchronisations").passed is True
        assert check(result, "token_weights").passed is True
        assert check(result, "loss_scale").passed is passed


def test_script_that_reduces_by_itself_is_judged_by_its_gradients(tmp_path: Path) -> None:
    by_hand = judged(right(tmp_path / "a", engine="none"))
    assert check(by_hand, "synchronisations").passed is True
    assert check(by_hand, "token_weights").passed is True
    assert check(by_hand, "parameters_agree").passed is None  # nothing shows whether they were alike at the start
    made = right(tmp_path / "b", engine="none")
    made.counts["all_reduce"] = 0
    broken_twin = judged(made)
    assert "unsynchronised_step" in names(broken_twin)
    assert check(broken_twin, "synchronisations").detail.endswith("every rank trains by itself.")


def test_shards_are_reduced_by_their_engine(tmp_path: Path) -> None:
    made = right(tmp_path, engine="fsdp2")
    result = judged(made)
    assert (result.summary["engine"], result.verdict, names(result)) == ("fsdp2", "pass", {})
    assert "gradients_agree" not in [item.name for item in result.checks]
    assert any("own part" in text for text in result.limits)
    made.window(synced=[0, 1, 2])
    assert names(judged(made)) == {"extra_syncs": "waste"}


def test_one_rank_has_nothing_to_synchronise(tmp_path: Path) -> None:
    script = Script(tmp_path, world=1)
    script.loader(replicas=None, sampler="RandomSampler")
    script.begin_pass(0, 0)
    script.window(((3, 5),), lambda _r, _m: 1 / 8, synced=[])
    script.end_pass(0, 0, [list(range(12))])
    result = judged(script)
    assert (result.verdict, names(result)) == ("pass", {})
    assert [item.name for item in result.checks] == ["token_weights", "loss_scale", "samples", "coverage"]
