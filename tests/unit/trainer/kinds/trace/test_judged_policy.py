"""What fails a check, what the user accepts or expects, and what the summary and the coverage say."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.traces import Script, check, judged, names, right
from trainer.contract.kinds import kinds, resolve_params
from trainer.contract.params import ParamsRefused
from trainer.contract.result import Result
from trainer.kinds.trace.judge.judging import judge
from trainer.kinds.trace.params import TraceParams


def uneven(folder: Path) -> Script:
    made = right(folder)
    made.window(factor=lambda _r, _m: 1 / 3, reduction="mean")
    for _ in range(8):
        made.window(factor=lambda _r, _m: 1 / 3, reduction="mean")
    return made


def test_summary_has_exactly_its_names(tmp_path: Path) -> None:
    result = judged(uneven(tmp_path), exit_code=0)
    assert set(result.summary) == {"findings", "windows", "coverage", "exit_code", "engine", "world_size"}
    assert (result.summary["engine"], result.summary["world_size"], result.summary["exit_code"]) == ("ddp", 2, 0)
    for window in result.summary["windows"]:
        assert set(window) == {"epoch", "step", "cells", "syncs", "micro_batches"}
        assert all(set(cell) == {"rank", "micro_batch", "units", "weight"} for cell in window["cells"])
    wanted = {"name", "severity", "check", "detail", "windows", "places", "measured", "suggestion", "allowed"}
    assert all(set(finding) == wanted for finding in result.summary["findings"])


def test_result_is_written_and_read_back(tmp_path: Path) -> None:
    result = judged(uneven(tmp_path / "trace"))
    result.save(tmp_path / "result.json")
    assert Result.model_validate(json.loads((tmp_path / "result.json").read_text())) == result


def test_headline_is_the_table_of_weights_and_the_timeline_has_all_spans(tmp_path: Path) -> None:
    result = judged(right(tmp_path))
    assert [panel.type for panel in result.panels] == ["heat", "timeline", "table", "table"]
    assert result.headline == result.panels[0].title
    lanes = result.panels[1].lanes  # type: ignore[union-attr]
    assert [lane.name for lane in lanes] == ["rank 0", "rank 1"]
    kinds_drawn = [span.kind for span in lanes[0].spans]
    assert {kind: kinds_drawn.count(kind) for kind in kinds_drawn} == {
        "forward": 9,
        "backward": 9,
        "sync": 3,
        "step": 3,
    }
    assert all(span.end >= span.begin >= 0 for lane in lanes for span in lane.spans)  # type: ignore[operator]


def test_weights_are_shown_even_where_no_window_is_clear(tmp_path: Path) -> None:
    made = Script(tmp_path)
    made.window(synced=[0])
    result = judged(made)
    assert (names(result)["sync_on_wrong_microbatch"], result.panels[0].type) == ("wrong", "heat")
    values = result.panels[0].model_dump()["values"]
    assert values[0][1] == pytest.approx(2 * values[0][0])


def test_table_of_what_was_seen_begins_with_what_was_not(tmp_path: Path) -> None:
    made = Script(tmp_path)
    made.window()
    rows = judged(made).panels[-1].rows  # type: ignore[union-attr]
    assert rows[0] == ["not seen", "No DataLoader was used: which samples were drawn is not visible."]
    assert ["windows looked at", "1"] in rows


def test_allowed_finding_passes_visibly(tmp_path: Path) -> None:
    made = uneven(tmp_path)
    assert judged(made).verdict == "fail"
    result = judged(made, allow=["unexplained", "mean_of_means"])
    assert result.verdict == "pass"
    assert names(result)
    assert all(finding["allowed"] for finding in result.summary["findings"])
    assert all(finding["detail"].startswith("Allowed: ") for finding in result.summary["findings"])
    assert check(result, "token_weights").detail.startswith("allowed: ")
    assert "allowed" in result.panels[2].rows[0][0]  # type: ignore[union-attr]


def test_fail_on_note(tmp_path: Path) -> None:
    made = right(tmp_path)
    made.totals[0]["optimizer"] = {"open_cells": 1}
    assert judged(made).verdict == "pass"
    assert judged(made, fail_on="waste").verdict == "pass"
    assert judged(made, fail_on="note").verdict == "fail"


@pytest.mark.parametrize(
    ("expect", "passed"),
    [
        ({"syncs_per_step": 1}, True),
        ({"syncs_per_step": 2}, False),
        ({"micro_batches_per_step": 3.0}, True),
        ({"optimizer_steps": 4}, True),
        ({"optimizer_steps": 5}, False),
        ({"world_size": 2}, True),
        ({"weight_ratio": 1, "weight_sum": 1}, True),
        ({"weight_ratio": 2}, False),
    ],
)
def test_expected_numbers_are_checks_of_their_own(tmp_path: Path, expect: dict[str, float], passed: bool) -> None:
    result = judged(right(tmp_path), expect=expect)
    own = [item for item in result.checks if item.name.startswith("expect_")]
    assert [item.name for item in own] == [f"expect_{name}" for name in sorted(expect)]
    assert all(item.passed is passed for item in own)
    assert result.verdict == ("pass" if passed else "fail")


def test_expected_number_that_was_not_seen_is_open(tmp_path: Path) -> None:
    result = judge(tmp_path / "nothing", TraceParams(expect={"syncs_per_step": 1, "world_size": 2}), 1)
    assert [check(result, f"expect_{name}").passed for name in ("syncs_per_step", "world_size")] == [None, None]


def test_varying_number_is_measured_where_it_is_furthest(tmp_path: Path) -> None:
    made = right(tmp_path)
    made.window(synced=[0, 1, 2])
    found = check(judged(made, expect={"syncs_per_step": 1}), "expect_syncs_per_step")
    assert (found.passed, found.measured) == (False, 3)


def test_nothing_seen_is_inconclusive(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        result = judge(folder, TraceParams(), 0)
        assert (result.verdict, result.summary["engine"], result.summary["world_size"]) == ("inconclusive", "none", 0)
        assert [item.name for item in result.checks] == ["coverage"]
        assert "No rank left records" in check(result, "coverage").detail


def test_missing_rank_leaves_the_verdict_open(tmp_path: Path) -> None:
    made = right(tmp_path, world=3)
    made.save()
    (tmp_path / "rank1.trace").unlink()
    result = judge(tmp_path, TraceParams(), 1)
    assert result.verdict == "inconclusive"
    assert result.summary["coverage"]["missing_ranks"] == [1]
    assert "1 rank of 3 left no records: rank 1." in check(result, "coverage").detail
    assert check(result, "token_weights").passed is None


def test_newest_start_is_judged(tmp_path: Path) -> None:
    uneven(tmp_path).save()
    right(tmp_path / "restart_2").save()
    shutil.copytree(tmp_path / "restart_2", tmp_path / "restart_10")
    result = judge(tmp_path, TraceParams(), 0)
    assert (names(result), result.verdict) == ({}, "pass")
    coverage = result.summary["coverage"]
    assert (coverage["restart"], coverage["earlier_starts"]) == (10, 2)


def test_switched_off_probe_is_said_and_nothing_passes_as_a_whole(tmp_path: Path) -> None:
    made = right(tmp_path)
    made.totals[1]["off"] = {"losses": "Traceback\nKeyError: 'x'"}
    result = judged(made)
    assert result.verdict == "inconclusive"
    assert result.summary["coverage"]["probes_off"] == {"losses": "KeyError: 'x'"}


def test_failed_command_is_judged_as_far_as_it_came(tmp_path: Path) -> None:
    result = judged(uneven(tmp_path), exit_code=17)
    assert "mean_of_means" in names(result) or "unexplained" in names(result)
    assert any("exit code 17" in text for text in result.limits)


@pytest.mark.parametrize(
    ("given", "field", "text"),
    [
        ({"allow": ["mean_of_mean"]}, "allow", "'mean_of_mean' is not a finding; findings are"),
        ({"expect": {"syncs": 1}}, "expect", "'syncs' is not measured; use syncs_per_step"),
        ({"expect": {"syncs_per_step": True}}, "expect.syncs_per_step", "number"),
        ({"expect": {"syncs_per_step": float("nan")}}, "expect.syncs_per_step", "finite"),
        ({"windows": 0}, "windows", "1"),
        ({"windows": 1001}, "windows", "1000"),
        ({"unit": "word"}, "unit", "token"),
        ({"fail_on": "never"}, "fail_on", "wrong"),
        ({"command": ["x"] * 1001}, "command", "1000"),
        ({"windws": 3}, "windws", "did you mean windows"),
    ],
)
def test_parameters_that_cannot_work_are_refused_by_name(given: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(ParamsRefused) as caught:
        resolve_params(kinds()["trace"], None, given)
    (problem,) = caught.value.problems
    assert problem.field == field
    assert text in problem.message
