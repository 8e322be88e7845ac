"""Samples, random streams, symmetry and files of all ranks: a right script passes, each broken twin is named."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.traces import LINES, LOADER, SAVE, SCRIPT, Script, check, judged, names, right

WHOLE = [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]


def drawing(folder: Path, *passes: Sequence[Sequence[int]], length: Any = 12, **loader: Any) -> Script:
    made = Script(folder)
    made.loader(length=length, **loader)
    for number, ids in enumerate(passes):
        made.begin_pass(0, number)
        made.window()
        made.end_pass(0, number, ids, complete=loader.get("complete", True))
    made.digests("parameters", {"w": "p"}, model=0, step=made.steps)
    made.digests("buffers", {}, model=0, step=made.steps)
    return made


def test_parts_of_the_data_pass(tmp_path: Path) -> None:
    result = judged(drawing(tmp_path, WHOLE, [WHOLE[1], WHOLE[0]]))
    assert (names(result), result.verdict) == ({}, "pass")


def test_same_data_on_all_ranks(tmp_path: Path) -> None:
    plain: dict[str, Any] = {"replicas": None, "sampler": "RandomSampler"}
    everything = [list(range(12)), list(range(11, -1, -1))]
    result = judged(drawing(tmp_path / "a", everything, **plain))
    assert names(result) == {"same_data_on_all_ranks": "wrong"}
    assert result.summary["findings"][0]["places"] == [{"file": SCRIPT, "line": LINES[LOADER]}]
    # A subset may be each rank's own part: then indices say nothing, and nothing passes unseen.
    subset = judged(drawing(tmp_path / "b", everything, dataset="Subset", **plain))
    assert names(subset) == {}
    assert check(subset, "samples").passed is None
    assert "Undecided" in check(subset, "samples").detail


@pytest.mark.parametrize("equal", [True, False])
def test_same_indices_in_the_same_order_are_told_apart_by_the_losses(tmp_path: Path, equal: bool) -> None:
    made = Script(tmp_path)
    made.loader(replicas=None, sampler="SequentialSampler", shuffle=False)
    made.begin_pass(0, 0)
    made.window(((3, 5), (3, 5)), loss={"value": 0.5} if equal else {})
    made.end_pass(0, 0, [list(range(12)), list(range(12))])
    result = judged(made)
    assert names(result) == ({"same_data_on_all_ranks": "wrong"} if equal else {})


def test_repeated_samples_and_padding(tmp_path: Path) -> None:
    twice = [[0, 2, 4, 6, 8, 10, 1, 3], [1, 3, 5, 7, 9, 11, 0, 2]]
    assert names(judged(drawing(tmp_path / "a", twice, batch_size=1))) == {"repeated_samples": "wrong"}
    padded = [[0, 2, 4, 6], [1, 3, 5, 0]]
    assert names(judged(drawing(tmp_path / "b", padded, length=7))) == {"repeated_samples": "note"}


def test_missing_samples_and_dropped_batches(tmp_path: Path) -> None:
    assert names(judged(drawing(tmp_path / "a", [[0, 2, 4, 6], [1, 3, 5, 7]]))) == {"missing_samples": "wrong"}
    short = [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert names(judged(drawing(tmp_path / "b", short, drop_last=True))) == {"missing_samples": "note"}
    interrupted = drawing(tmp_path / "c", [[0, 2], [1, 3]], complete=False)
    assert names(judged(interrupted)) == {}


def test_sharded_twice_is_named_with_the_ids(tmp_path: Path) -> None:
    wrong = drawing(tmp_path / "a", [[0, 4, 8, 12], [3, 7, 11, 15]], length=16, batch_size=1, shuffle=False)
    result = judged(wrong)
    assert names(result) == {"sharded_twice": "wrong"}
    (finding,) = result.summary["findings"]
    assert finding["measured"]["missing"] == 8
    assert "rank 0 draws 0, 4, 8, 12" in finding["detail"]
    assert "1, 2, 5, 6, 9, 10, 13, 14" in finding["detail"]
    fine = [list(range(0, 16, 2)), list(range(1, 16, 2))]
    assert names(judged(drawing(tmp_path / "b", fine, length=16, batch_size=4))) == {}


@pytest.mark.parametrize("sharded", [True, False])
def test_own_parts_of_the_data_are_told_by_their_digests(tmp_path: Path, sharded: bool) -> None:
    loader: dict[str, Any] = {} if sharded else {"replicas": None, "sampler": "RandomSampler"}
    ids = [[0, 2, 4], [1, 3, 5]] if sharded else [list(range(6)), list(range(5, -1, -1))]
    made = drawing(tmp_path, ids, length=6, dataset="Subset", **loader)
    for rank, records in enumerate(made.records):
        next(item for item in records if item["record"] == "loader")["part"] = f"part {rank}"
    result = judged(made)
    assert names(result) == ({"sharded_twice": "wrong"} if sharded else {})
    assert check(result, "samples").passed is not sharded
    if not sharded:
        for records in made.records:
            next(item for item in records if item["record"] == "loader")["part"] = "same"
        assert names(judged(made)) == {"same_data_on_all_ranks": "wrong"}


@pytest.mark.parametrize("shuffle", [True, False])
def test_same_order_every_epoch_is_wrong_only_where_it_should_shuffle(tmp_path: Path, shuffle: bool) -> None:
    result = judged(drawing(tmp_path, WHOLE, WHOLE, WHOLE, shuffle=shuffle))
    assert names(result) == ({"same_order_every_epoch": "wrong"} if shuffle else {})


def test_padded_evaluation(tmp_path: Path) -> None:
    for length, expected in ((7, {"padded_evaluation": "note"}), (8, {})):
        made = right(tmp_path / str(length))
        made.loader(1, length=length, shuffle=False)
        made.begin_pass(1, 0)
        made.end_pass(1, 0, [[0, 2, 4, 6], [1, 3, 5, 0 if length == 7 else 7]])
        assert names(judged(made)) == expected


def test_iterable_data_set_is_never_a_silent_pass(tmp_path: Path) -> None:
    made = drawing(tmp_path, [[], []], iterable=True, length=None, sampler=None)
    result = judged(made)
    assert (check(result, "samples").passed, result.verdict) == (None, "inconclusive")
    assert "Ids not visible" in check(result, "samples").detail
    assert "Ids not visible" in check(result, "coverage").detail


def test_ids_that_were_not_kept_or_are_odd(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{"place": None, "kept": 0}, {"odd": True}, {"place": 10**6}, {"kept": 3}]
    for number, fields in enumerate(wrong):
        made = Script(tmp_path / str(number))
        made.loader()
        made.begin_pass(0, 0)
        made.window()
        made.end_pass(0, 0, WHOLE, **fields)
        assert check(judged(made), "samples").passed is None, fields


def test_no_loader_is_said(tmp_path: Path) -> None:
    made = Script(tmp_path)
    made.window()
    result = judged(made)
    assert "samples" not in [item.name for item in result.checks]
    assert any("No DataLoader" in text for text in result.limits)


def test_unequal_steps_and_forwards(tmp_path: Path) -> None:
    made = right(tmp_path)
    made.step_gap[1] = 1
    made.totals[1]["counts"] = {**made.counts, "forwards of model 0": 11}
    result = judged(made)
    assert names(result) == {"unequal_steps": "wrong", "unequal_forwards": "wrong"}
    assert result.summary["findings"][0]["measured"]["ranks_with_least"] == [1]


def test_ranks_that_did_not_end_are_not_compared(tmp_path: Path) -> None:
    made = right(tmp_path)
    made.step_gap[1] = 1
    made.last = False
    result = judged(made, exit_code=1)
    assert names(result) == {}
    assert check(result, "rank_symmetry").passed is None
    assert result.summary["coverage"]["ranks_without_end"] == [0, 1]


def test_step_skipped_on_one_rank(tmp_path: Path) -> None:
    made = right(tmp_path)
    made.add(1, "skipped", optimizer=0, step=2, micro_batches=3)
    assert names(judged(made)) == {"skipped_on_one_rank": "wrong"}
    made.add(0, "skipped", optimizer=0, step=2, micro_batches=3)
    assert names(judged(made)) == {}


@pytest.mark.parametrize(("dropouts", "alike"), [(True, True), (True, False), (False, True)])
def test_same_random_stream_matters_with_dropout(tmp_path: Path, dropouts: bool, alike: bool) -> None:
    made = right(tmp_path, dropouts=dropouts)
    for rank in range(2):
        made.add(rank, "stream", model=0, digest="same" if alike else f"rank {rank}")
    assert names(judged(made)) == ({"same_random_stream": "note"} if dropouts and alike else {})


@pytest.mark.parametrize(("workers", "own", "expected"), [(2, False, True), (2, True, False), (0, False, False)])
def test_same_random_stream_matters_with_workers(tmp_path: Path, workers: int, own: bool, expected: bool) -> None:
    made = Script(tmp_path)
    made.loader(workers=workers, own_generator=own)
    made.begin_pass(0, 0, lambda _rank: 50)
    made.window()
    made.end_pass(0, 0, WHOLE)
    assert names(judged(made)) == ({"same_random_stream": "note"} if expected else {})


def test_different_initial_weights_are_a_note(tmp_path: Path) -> None:
    made = right(tmp_path)
    next(item for item in made.records[1] if item["record"] == "model")["initial"] = {"w": "other", "b": "x"}
    result = judged(made)
    assert (names(result), result.verdict) == ({"different_initial_weights": "note"}, "pass")


@pytest.mark.parametrize("paths", [("/out/model.pt", "/out/model.pt"), ("/out/0.pt", "/out/1.pt")])
def test_file_that_two_ranks_write(tmp_path: Path, paths: tuple[str, str]) -> None:
    made = right(tmp_path)
    for rank, path in enumerate(paths):
        made.add(rank, "write", path=path, function="torch.save", site=SAVE)
    result = judged(made)
    same = paths[0] == paths[1]
    assert names(result) == ({"same_file_written": "wrong"} if same else {})
    if same:
        assert result.summary["findings"][0]["places"] == [{"file": SCRIPT, "line": LINES[SAVE]}]


def test_file_of_a_library_is_a_note(tmp_path: Path) -> None:
    made = right(tmp_path)
    made.all("write", path="/cache/table", function="open", site=-1)
    assert names(judged(made)) == {"same_file_written": "note"}
