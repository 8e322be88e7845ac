"""Gradients, parameters and buffers of all ranks: equal passes, one that differs is named with step and ranks."""

from pathlib import Path

from tests.support.traces import check, judged, names, right


def test_gradient_that_differs_is_named_with_step_and_rank(tmp_path: Path) -> None:
    made = right(tmp_path, world=3)
    made.digests("gradients", {"w": "1", "b": "2"}, {"b": "3"}, optimizer=0, step=5)
    result = judged(made)
    assert names(result) == {"gradients_differ": "wrong"}
    measured = result.summary["findings"][0]["measured"]
    assert (measured["step"], measured["name"], measured["ranks"]) == (5, "b", [2])
    assert result.verdict == "fail"


def test_parameter_that_differs(tmp_path: Path) -> None:
    made = right(tmp_path)
    made.digests("parameters", {"w": "1", "b": "2"}, {"w": "3", "b": "4"}, model=0, step=6)
    result = judged(made)
    assert names(result) == {"parameters_differ": "wrong"}
    assert result.summary["findings"][0]["measured"]["differing"] == 2


def test_buffers_of_plain_batch_norm_are_a_note_and_others_are_wrong(tmp_path: Path) -> None:
    made = right(tmp_path / "norm", batch_norms=["bn"])
    made.digests("buffers", {"bn.running_mean": "1"}, {"bn.running_mean": "2"}, model=0, step=6)
    assert names(judged(made)) == {"buffers_differ": "note"}
    assert judged(made).verdict == "pass"
    other = right(tmp_path / "other", batch_norms=["bn"])
    other.digests("buffers", {"average": "1"}, {"average": "2"}, model=0, step=6)
    assert names(judged(other)) == {"buffers_differ": "wrong"}


def test_parameters_that_nothing_reduces_are_one_finding(tmp_path: Path) -> None:
    made = right(tmp_path)
    made.all("unreduced", optimizer=0, names=["late.weight"], count=1)
    made.digests("gradients", {"late.weight": "1"}, {"late.weight": "2"}, optimizer=0, step=5)
    made.digests("parameters", {"late.weight": "1"}, {"late.weight": "2"}, model=0, step=5)
    result = judged(made)
    assert names(result) == {"unreduced_parameters": "wrong"}
    assert result.summary["findings"][0]["measured"]["names"] == ["late.weight"]


def test_buffers_that_move_twice_per_forward(tmp_path: Path) -> None:
    for factor, expected in ((1, {}), (2, {"buffers_moved_twice": "wrong"})):
        made = right(tmp_path / str(factor), batch_norms=["bn"])
        for forwards in (3, 12):
            values = {"bn.num_batches_tracked": 7 + factor * forwards}
            made.all("tracked", model=0, step=forwards // 3, forwards=forwards, values=values)
        assert names(judged(made)) == expected


def test_nothing_to_compare_passes_nothing(tmp_path: Path) -> None:
    made = right(tmp_path)
    for rank in made.records:
        rank[:] = [item for item in rank if item["record"] != "digest"]
    result = judged(made)
    assert result.verdict == "inconclusive"
    for name in ("gradients_agree", "parameters_agree", "buffers_agree"):
        assert check(result, name).passed is None
