"""A whole run of both modes on two ranks, its artifacts, and attempts that continue in the middle of an epoch."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from app.runs.results.verification import verify_run
from tests.support.stages import LocalRun
from trainer.common.model_file import load_model
from trainer.contract.manifest import step_directories
from trainer.contract.paths import RunPaths
from trainer.contract.result import ConfusionPanel, ImagesPanel, Result
from trainer.kinds.cifar.audit.artifacts import ModeArtifacts
from trainer.kinds.cifar.audit.panels import SYNCS_TITLE
from trainer.kinds.cifar.audit.verify import verify
from trainer.kinds.cifar.data.images import normalised
from trainer.kinds.cifar.data.split import PreparedData
from trainer.kinds.cifar.facts import ModeFacts
from trainer.kinds.cifar.train.model import from_header

pytestmark = pytest.mark.torchrun

SIZES: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 4,
    "train_size": 128,
    "validation_size": 21,
    "test_size": 61,
    "save_every": 3,
    "bucket_cap_mb": 0.5,
    "precision": "fp32",
}
STEPS = 128 // (4 * 2 * 4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> LocalRun:
    created = LocalRun.create(tmp_path_factory.mktemp("cifar") / "1", "cifar", **SIZES)
    for stage in created.plan[:-1]:
        created.stage(stage.name)
    # The audit removes the images; later tests read this copy.
    shutil.copytree(created.paths.work, created.paths.root.parent / "before" / "work")
    created.stage("audit")
    return created


@pytest.fixture(scope="module")
def result(run: LocalRun) -> Result:
    return run.result()


@pytest.fixture(scope="module")
def before(run: LocalRun) -> RunPaths:
    return RunPaths(run.paths.root.parent / "before")


def test_both_modes_pass(result: Result) -> None:
    assert result.verdict == "pass"
    assert {check.name for check in result.checks} == {
        "samples_per_rank", "micro_batches", "optimizer_steps", "gradient_syncs", "sync_witness", "confusion_total",
        "artifacts", "same_start", "same_steps", "sync_ratio",
    }  # fmt: skip
    assert all(check.passed for check in result.checks)


def test_summary_counts_per_epoch(result: Result) -> None:
    modes = result.summary["modes"]
    assert [modes[mode]["optimizer_steps"] for mode in ("every", "no_sync")] == [STEPS, STEPS]
    assert [modes[mode]["gradient_syncs"] for mode in ("every", "no_sync")] == [4 * STEPS, STEPS]
    assert all(modes[mode]["communication_seconds"] > 0 for mode in modes)
    assert all(modes[mode]["seconds"] > modes[mode]["communication_seconds"] for mode in modes)


@pytest.mark.parametrize("mode", ["every", "no_sync"])
def test_artifacts_hold_what_they_name(mode: str, run: LocalRun) -> None:
    artifacts = ModeArtifacts(run.paths, mode)
    history = json.loads(artifacts.history.read_text())
    report = json.loads(artifacts.report.read_text())
    assert [(row["epoch"], row["mode"], row["optimizer_steps"]) for row in history] == [(1, mode, 4), (2, mode, 4)]
    assert sum(map(sum, report["confusion_matrix"])) == 61
    assert report["baseline_accuracy"] == pytest.approx(max(map(sum, report["confusion_matrix"])) / 61, abs=0.03)
    with Image.open(artifacts.sample) as image:
        assert (image.size, image.mode) == ((32, 32), "RGB")
    loaded = load_model(artifacts.model, from_header)
    assert (len(loaded.classes), loaded.seed) == (10, 47)


@pytest.mark.parametrize("mode", ["every", "no_sync"])
def test_trace_opens_in_perfetto(mode: str, run: LocalRun) -> None:
    traces = sorted(ModeArtifacts(run.paths, mode).traces.iterdir())
    assert [path.name for path in traces] == [f"window-{step:04d}.json.gz" for step in range(3)]
    events = json.loads(gzip.decompress(traces[1].read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "gloo:all_reduce" for event in events) >= (4 if mode == "every" else 1)


@pytest.mark.parametrize("mode", ["every", "no_sync"])
def test_stored_model_reproduces_test_score(mode: str, run: LocalRun, before: RunPaths) -> None:
    images, labels = PreparedData(before).read("test")
    network = load_model(ModeArtifacts(run.paths, mode).model, from_header).network
    with torch.no_grad():
        guesses = network(normalised(torch.from_numpy(np.array(images)))).argmax(dim=1).numpy()
    single = np.zeros((10, 10), dtype=int)
    np.add.at(single, (labels, guesses), 1)
    facts = ModeFacts.load(run.paths, mode)
    assert single.tolist() == facts.test.confusion
    assert guesses.tolist() == facts.predicted


def test_panels_show_matrix_and_examples(result: Result, run: LocalRun) -> None:
    assert result.headline == SYNCS_TITLE
    matrices = [panel for panel in result.panels if isinstance(panel, ConfusionPanel)]
    assert [panel.mode for panel in matrices] == ["every", "no_sync"]
    assert all(sum(map(sum, panel.counts)) == 61 for panel in matrices)
    pictures = [item for panel in result.panels if isinstance(panel, ImagesPanel) for item in panel.items]
    assert pictures
    assert all((run.paths.artifacts / item.path).stat().st_size > 0 for item in pictures)


def test_memory_of_both_settings_shown(result: Result) -> None:
    memory = result.summary["modes"]["no_sync"]["peak_memory_bytes"]
    assert 0 < memory["checkpointed"] < memory["plain"]


def test_images_removed_after_audit(run: LocalRun, before: RunPaths) -> None:
    assert list((before.work / "data").glob("*_images.npy"))
    assert not list((run.paths.work / "data").glob("*_images.npy"))


def test_events_tell_every_sync(run: LocalRun) -> None:
    for rank in (0, 1):
        syncs = run.events("train-no-sync", rank, kind="sync")
        assert [(event["step"], event["count"]) for event in syncs] == [(step, 1) for step in range(1, 2 * STEPS + 1)]
    metrics = run.events("train-no-sync", 0, kind="metrics")
    assert sum("validation_accuracy" in event["values"] for event in metrics) == 2


def test_cosine_moves_once_an_epoch(run: LocalRun) -> None:
    values = [event["values"] for event in run.events("train-no-sync", 0, kind="metrics")]
    rates = [item["learning_rate"] for item in values if "learning_rate" in item]
    assert rates[0] == 3e-3
    assert len(set(rates)) == 2
    assert rates[-1] == pytest.approx(1.5e-3)


def test_verify_repeats_the_audit(run: LocalRun, result: Result) -> None:
    report = verify(run.paths)
    assert report.problems == []
    assert report.pass_line is not None
    assert report.pass_line.endswith("ratio 4")
    assert [row["test_accuracy"] for row in report.rows] == [
        result.summary["modes"][mode]["test_accuracy"] for mode in ("every", "no_sync")
    ]
    # The service and `ddp-audit verify` run the same module in a separate process.
    assert verify_run(run.paths.root)["pass_line"] == report.pass_line


# Saved steps are 3 (inside epoch 1), 4 (its end), 6 (inside epoch 2) and 8 (the end).
@pytest.mark.parametrize("newest", [3, 4])
def test_continued_attempt_repeats_every_bit(newest: int, run: LocalRun, before: RunPaths, tmp_path: Path) -> None:
    again = LocalRun.create(tmp_path / "1", "cifar", **SIZES)
    shutil.copytree(before.work, again.paths.work)
    stored = again.paths.checkpoints("train-no-sync")
    shutil.copytree(run.paths.checkpoints("train-no-sync"), stored)
    for path in step_directories(stored):
        if int(path.name.removeprefix("step-")) > newest:
            shutil.rmtree(path)
    again.stage("train-no-sync", attempt=2)
    first, second = (ModeFacts.load(paths, "no_sync") for paths in (run.paths, again.paths))
    assert without_times(first) == without_times(second)
    assert next(event["step"] for event in again.events("train-no-sync", kind="sync", attempt=2)) == newest + 1
    models = [load_model(ModeArtifacts(paths, "no_sync").model, from_header) for paths in (run.paths, again.paths)]
    left, right = (model.network.state_dict() for model in models)
    assert all(torch.equal(left[name], right[name]) for name in left)


def without_times(facts: ModeFacts) -> dict[str, Any]:
    document = facts.model_dump()
    for epoch in document["epochs"]:
        # A resumed process starts with DDP's initial buckets: the same bytes in different pieces.
        for key in ("seconds", "communication_seconds", "buckets"):
            del epoch[key]
    for window in document["windows"]:
        del window["evidence"]["events"]
    del document["memory"]
    return document
