"""Checks of counts: correct facts pass, and each fault fails its check with a text that names it."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.cifar_facts import CLASSES, epoch_facts, mode_facts, parameters, window
from trainer.contract.paths import RunPaths
from trainer.contract.result import Check, Relation, verdict_of
from trainer.kinds.cifar.audit.artifacts import ModeArtifacts, baseline, top_confusions
from trainer.kinds.cifar.audit.limits import limits
from trainer.kinds.cifar.audit.pair_checks import pair_checks
from trainer.kinds.cifar.audit.panels import panels, sync_bars
from trainer.kinds.cifar.audit.stage import judge, reported_syncs, summary
from trainer.kinds.cifar.data.split import DataCard
from trainer.kinds.cifar.facts import ModeFacts, StartFacts
from trainer.kinds.cifar.params import CifarParams

BOTH = parameters(mode="both")


def artifacts(root: Path, *modes: str) -> list[ModeArtifacts]:
    found = [ModeArtifacts(RunPaths(root), mode) for mode in modes]
    for path in (path for mode in found for path in mode.required):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return found


def checks(root: Path, params: CifarParams, *modes: ModeFacts) -> dict[str, Check]:
    found = judge(params, list(modes), artifacts(root, *(facts.mode for facts in modes)))
    return {check.name: check for check in found}


def failed(found: dict[str, Check]) -> list[str]:
    return [name for name, check in found.items() if check.passed is not True]


def with_epoch(params: CifarParams, **broken: Any) -> ModeFacts:
    epochs = [epoch_facts(params, "no_sync", 1), epoch_facts(params, "no_sync", 2, **broken)]
    return mode_facts(params, "no_sync", epochs=epochs)


def test_right_facts_pass(tmp_path: Path) -> None:
    found = checks(tmp_path, BOTH, mode_facts(BOTH, "every"), mode_facts(BOTH, "no_sync"))
    assert failed(found) == []
    assert verdict_of(list(found.values())) == "pass"
    assert (found["gradient_syncs"].measured, found["gradient_syncs"].limit) == (20, 20)
    assert (found["sync_ratio"].measured, found["sync_ratio"].limit) == (4, 4)


def test_every_count_is_an_expectation(tmp_path: Path) -> None:
    found = checks(tmp_path, BOTH, mode_facts(BOTH, "every"), mode_facts(BOTH, "no_sync"))
    assert {check.relation for check in found.values()} == {Relation.EQUAL}
    assert all("relation" in check.model_fields_set and check.fits for check in found.values())


def test_single_mode_has_no_pair_checks(tmp_path: Path) -> None:
    params = parameters(mode="no_sync")
    found = checks(tmp_path, params, mode_facts(params, "no_sync"))
    assert failed(found) == []
    assert found.keys().isdisjoint({"same_start", "same_steps", "sync_ratio"})
    assert (found["gradient_syncs"].measured, found["optimizer_steps"].measured) == (4, 4)


@pytest.mark.parametrize(
    ("counted", "check", "unit"),
    [
        ("samples", "samples_per_rank", "images"),
        ("micro_batches", "micro_batches", "micro-batches"),
        ("optimizer_steps", "optimizer_steps", "steps"),
        ("gradient_syncs", "gradient_syncs", "synchronisations"),
    ],
)
def test_one_rank_off_by_one(counted: str, check: str, unit: str, tmp_path: Path) -> None:
    params = parameters(mode="no_sync")
    right = getattr(epoch_facts(params, "no_sync", 1), counted)
    found = checks(tmp_path, params, with_epoch(params, **{counted: [right[0], right[1] + 1]}))
    assert failed(found) == [check]
    assert (found[check].measured, found[check].unit) == (right[0] + 1, unit)
    assert f"epoch 2, rank 1: counted {right[1] + 1}, expected {right[1]}" in found[check].detail


def test_step_fault_names_the_sizes(tmp_path: Path) -> None:
    params = parameters(mode="no_sync")
    found = checks(tmp_path, params, with_epoch(params, optimizer_steps=[3, 3]))
    assert "batch_size, world_size and train_size together" in found["optimizer_steps"].detail


def test_missing_epoch_fails(tmp_path: Path) -> None:
    params = parameters(mode="no_sync")
    found = checks(tmp_path, params, mode_facts(params, "no_sync", epochs=[epoch_facts(params, "no_sync", 1)]))
    assert failed(found) == ["gradient_syncs"]


def test_sampler_duplicate_is_named(tmp_path: Path) -> None:
    params = parameters(mode="no_sync")
    found = checks(tmp_path, params, with_epoch(params, repeated_ids=[7], distinct_ids=159))
    assert failed(found) == ["samples_per_rank"]
    assert "sampler duplicates: id 7" in found["samples_per_rank"].detail


@pytest.mark.parametrize(
    ("syncs", "cause"),
    [
        (16, "outside `no_sync`"),
        (8, "may count every reduction twice"),
        (0, "the hook is not registered"),
        (5, "compare with the profiler"),
    ],
)
def test_sync_fault_names_its_cause(syncs: int, cause: str, tmp_path: Path) -> None:
    params = parameters(mode="no_sync")
    found = checks(tmp_path, params, with_epoch(params, gradient_syncs=[syncs, syncs]))
    assert cause in found["gradient_syncs"].detail


def test_every_that_did_not_sync_is_named() -> None:
    params = parameters(mode="every")
    broken = mode_facts(params, "every", epochs=[epoch_facts(params, "every", 1, gradient_syncs=[4, 4])] * 2)
    (check,) = [item for item in judge(params, [broken], []) if item.name == "gradient_syncs"]
    assert "`no_sync` was used by mistake" in check.detail


@pytest.mark.parametrize(
    ("hook", "profiler", "text"),
    [
        (2, 1, "the hook counted 2, the profiler 1 (+1), expected 1: the hook disagrees"),
        (1, 2, "the hook counted 1, the profiler 2 (-1), expected 1: the profiler disagrees"),
        (2, 3, "neither matches the mode"),
    ],
)
def test_odd_witness_is_named(hook: int, profiler: int, text: str, tmp_path: Path) -> None:
    params = parameters(mode="no_sync")
    windows = [window(params, "no_sync", 0), window(params, "no_sync", 1, hook=hook, reductions=profiler)]
    found = checks(tmp_path, params, mode_facts(params, "no_sync", windows=windows))
    assert failed(found) == ["sync_witness"]
    assert text in found["sync_witness"].detail
    assert "2 of 8 windows sampled (25.0%)" in found["sync_witness"].detail


def test_stray_bytes_are_not_rounded_away(tmp_path: Path) -> None:
    params = parameters(mode="no_sync")
    windows = [window(params, "no_sync", 0, unmatched_bytes=8, size=2_234_160)]
    found = checks(tmp_path, params, mode_facts(params, "no_sync", windows=windows))
    assert found["sync_witness"].passed is False
    assert "8 left over" in found["sync_witness"].detail


def test_no_sampled_window_is_inconclusive(tmp_path: Path) -> None:
    params = parameters(mode="no_sync")
    found = checks(tmp_path, params, mode_facts(params, "no_sync", windows=[]))
    assert found["sync_witness"].passed is None
    assert verdict_of(list(found.values())) == "inconclusive"


@pytest.mark.parametrize(
    ("matrix", "repeated"),
    [([[15, 5, 0], [2, 18, 0], [1, 2, 18]], [3]), ([[15, 5, 0], [2, 18, 0], [1, 2, 17]], [3])],
)
def test_image_counted_twice_fails(matrix: list[list[int]], repeated: list[int], tmp_path: Path) -> None:
    params = parameters(mode="no_sync")
    right = mode_facts(params, "no_sync")
    test = right.test.model_copy(update={"confusion": matrix, "repeated": repeated})
    found = checks(tmp_path, params, right.model_copy(update={"test": test}))
    assert failed(found) == ["confusion_total"]
    assert "1 test images counted twice" in found["confusion_total"].detail


@pytest.mark.parametrize(("content", "text"), [(None, "is missing"), (b"", "is empty")])
def test_artifact_fault_names_its_path(content: bytes | None, text: str, tmp_path: Path) -> None:
    params = parameters(mode="no_sync")
    (mode,) = artifacts(tmp_path, "no_sync")
    mode.report.unlink()
    if content is not None:
        mode.report.write_bytes(content)
    (check,) = [item for item in judge(params, [mode_facts(params, "no_sync")], [mode]) if item.name == "artifacts"]
    assert (check.passed, check.measured, check.limit) == (False, 3, 4)
    assert check.detail == f"artifacts/no_sync/report.json {text}"


@pytest.mark.parametrize("field", ["weights", "ids", "views", "optimizer", "determinism", "data_lock"])
def test_other_start_is_named(field: str) -> None:
    every, no_sync = mode_facts(BOTH, "every"), mode_facts(BOTH, "no_sync")
    other = ["z9", "z9"] if field in ("weights", "ids", "views") else "z9"
    start = StartFacts(**{**no_sync.start.model_dump(), field: other})
    found = {check.name: check for check in pair_checks(BOTH, every, no_sync.model_copy(update={"start": start}))}
    assert [name for name, check in found.items() if not check.passed] == ["same_start"]
    assert found["same_start"].measured == 1


def test_ranks_with_other_weights_told() -> None:
    start = mode_facts(BOTH, "every").start.model_copy(update={"weights": ["a1", "a2"]})
    pair = [mode_facts(BOTH, mode, start=start) for mode in BOTH.modes]
    same_start = pair_checks(BOTH, pair[0], pair[1])[0]
    assert same_start.passed is False
    assert "between the ranks of mode every" in same_start.detail


def test_other_ratio_fails() -> None:
    broken = mode_facts(
        BOTH, "no_sync", epochs=[epoch_facts(BOTH, "no_sync", n, gradient_syncs=[8, 8]) for n in (1, 2)]
    )
    ratio = pair_checks(BOTH, mode_facts(BOTH, "every"), broken)[2]
    assert (ratio.passed, ratio.measured) == (False, 2)
    silent = mode_facts(
        BOTH, "no_sync", epochs=[epoch_facts(BOTH, "no_sync", n, gradient_syncs=[0, 0]) for n in (1, 2)]
    )
    assert pair_checks(BOTH, mode_facts(BOTH, "every"), silent)[2].measured is None


def test_ratio_is_exact_per_epoch() -> None:
    # 15 + 17 over 4 + 4 is 4 in total and in no epoch.
    epochs = [epoch_facts(BOTH, "every", n, gradient_syncs=[count] * 2) for n, count in ((1, 15), (2, 17))]
    ratio = pair_checks(BOTH, mode_facts(BOTH, "every", epochs=epochs), mode_facts(BOTH, "no_sync"))[2]
    assert (ratio.passed, ratio.measured) == (False, 4)


def test_unequal_steps_fail() -> None:
    broken = mode_facts(
        BOTH, "no_sync", epochs=[epoch_facts(BOTH, "no_sync", n, optimizer_steps=[4, 3]) for n in (1, 2)]
    )
    assert pair_checks(BOTH, mode_facts(BOTH, "every"), broken)[1].passed is False


def test_confusions_off_the_diagonal() -> None:
    found = top_confusions([[15, 5, 0], [2, 18, 0], [1, 2, 17]], CLASSES)
    assert [(item["true"], item["predicted"], item["count"]) for item in found] == [
        ("cat", "dog", 5),
        ("dog", "cat", 2),
        ("frog", "dog", 2),
        ("frog", "cat", 1),
    ]
    assert len(top_confusions([[1] * 10 for _ in range(10)], "abcdefghij")) == 5


def test_baseline_comes_from_training() -> None:
    assert baseline([5, 9, 9], [50, 20, 30]) == (1, 0.2)
    assert baseline([4000] * 10, [1000] * 10) == (0, 0.1)


def test_history_reports_the_rank_that_is_off() -> None:
    params = parameters(mode="no_sync")
    assert reported_syncs(params, with_epoch(params, gradient_syncs=[4, 16])) == [4, 16]


def test_summary_and_panels_from_facts() -> None:
    card = DataCard(
        source="synthetic",
        classes=CLASSES,
        counts={"train": [50, 60, 50], "validation": [7, 7, 6], "test": [20, 20, 20]},
        digest="d",
    )
    modes = [mode_facts(BOTH, mode) for mode in BOTH.modes]
    found = summary(BOTH, modes, card)["modes"]["no_sync"]
    assert (found["baseline_class"], found["baseline_accuracy"]) == ("dog", 20 / 60)
    assert (found["seconds"], found["communication_seconds"]) == (4.0, 1.0)
    titles = [panel.title for panel in panels(BOTH, modes, CLASSES, ("dog", 1 / 3))]
    assert {"Audit", "Epochs", "Loss", "Accuracy", "Time", "Digests of weights and draws"} <= set(titles)


def test_headline_shows_the_count_that_is_off() -> None:
    params = parameters(mode="no_sync")
    right, wrong = with_epoch(params), with_epoch(params, gradient_syncs=[4, 16])
    assert [group.values for group in sync_bars(params, [right]).groups] == [[4], [4]]
    assert [group.values for group in sync_bars(params, [wrong]).groups] == [[4], [16]]


def test_limits_name_what_was_not_validated() -> None:
    params = parameters(mode="no_sync")
    cpu = limits(params, [mode_facts(params, "no_sync")], ["a"])
    assert any("NCCL was not validated" in line for line in cpu)
    run = mode_facts(params, "no_sync").run.model_copy(update={"backend": "nccl", "device": "cuda"})
    gpu = limits(params, [mode_facts(params, "no_sync", run=run)], ["a"])
    assert not any("NCCL was not validated" in line for line in gpu)
