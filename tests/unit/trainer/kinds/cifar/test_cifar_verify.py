"""The repeated audit reads only the artifacts: valid ones pass, and every tampered one is reported with its path."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cifar_facts import CLASSES, mode_facts, parameters
from trainer.contract.config import RunConfig
from trainer.contract.files import write_json_atomically
from trainer.contract.paths import RunPaths
from trainer.kinds.cifar.audit.artifacts import ModeArtifacts, top_confusions
from trainer.kinds.cifar.audit.verify import main, verify

PARAMS = parameters(mode="both")


@pytest.fixture
def stored(tmp_path: Path) -> RunPaths:
    """A run's folder with `config.json` and valid artifacts, and nothing else."""
    paths = RunPaths(tmp_path / "1")
    config = RunConfig(
        run_id=1,
        kind="cifar",
        params=PARAMS.model_dump(mode="json"),
        backend="gloo",
        device="cpu",
        datasets_dir=str(tmp_path),
    )
    paths.root.mkdir()
    write_json_atomically(paths.config, config.model_dump(mode="json"))
    for mode in PARAMS.modes:
        facts = mode_facts(PARAMS, mode)
        artifacts = ModeArtifacts(paths, mode)
        rows = [
            {
                "epoch": epoch.epoch,
                "mode": mode,
                "optimizer_steps": epoch.optimizer_steps[0],
                "gradient_syncs": epoch.gradient_syncs[0],
                "train_loss": epoch.train_loss,
                "train_accuracy": epoch.train_accuracy,
                "validation_loss": epoch.validation_loss,
                "validation_accuracy": epoch.validation_accuracy,
            }
            for epoch in facts.epochs
        ]
        write_json_atomically(artifacts.history, rows, within=paths.root)
        report = {
            "mode": mode,
            "baseline_class": "cat",
            "baseline_accuracy": 20 / 60,
            "model_test_loss": facts.test.loss,
            "model_test_accuracy": facts.test.accuracy,
            "confusion_matrix": facts.test.confusion,
            "top_confusions": top_confusions(facts.test.confusion, CLASSES),
        }
        write_json_atomically(artifacts.report, report)
        with zipfile.ZipFile(artifacts.model, "w") as archive:
            archive.writestr("data.pkl", b"x")
        artifacts.sample.write_bytes(b"x")
    return paths


def edit(path: Path, change: Callable[[Any], None]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def problems_after(stored: RunPaths, file: str, change: Callable[[Any], None]) -> list[str]:
    edit(stored.artifacts / file, change)
    report = verify(stored)
    assert report.ok is False
    assert report.pass_line is None
    return report.problems


def test_sound_artifacts_pass(stored: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--run-dir", str(stored.root)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    assert document["problems"] == []
    assert document["rows"] == [
        {"mode": "every", "optimizer_steps": 4, "gradient_syncs": 16, "test_accuracy": 50 / 60},
        {"mode": "no_sync", "optimizer_steps": 4, "gradient_syncs": 4, "test_accuracy": 50 / 60},
    ]
    assert document["baseline"] == {"class": "cat", "accuracy": 20 / 60}
    assert document["top_confusions"][0] == {"mode": "every", "true": "cat", "predicted": "dog", "count": 5}
    assert document["pass_line"].endswith("ratio 4")


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("optimizer_steps", 3, "epoch 2 has optimizer_steps 3, expected 4"),
        ("gradient_syncs", 16, "epoch 2 has gradient_syncs 16, expected 4"),
        ("mode", "every", "epoch 2 has mode every, expected no_sync"),
        ("epoch", 3, "epochs are [1, 3], expected 1 to 2"),
        ("gradient_syncs", "many", "1.gradient_syncs"),
        ("gradient_syncs", -4, "1.gradient_syncs"),
    ],
)
def test_tampered_history_told(key: str, value: Any, text: str, stored: RunPaths) -> None:
    found = problems_after(stored, "no_sync/history.json", lambda rows: rows[1].update({key: value}))
    assert any(text in problem and "artifacts/no_sync/history.json" in problem for problem in found)


def test_lost_epoch_told(stored: RunPaths) -> None:
    found = problems_after(stored, "every/history.json", lambda rows: rows.pop())
    assert found == ["artifacts/every/history.json: epochs are [1], expected 1 to 2"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"confusion_matrix": [[15, 5, 0], [2, 18, 0], [1, 2, 16]]}, "counts 59 images, the test set has 60"),
        ({"confusion_matrix": [[15, 5], [2, 18, 0]]}, "not square"),
        ({"confusion_matrix": []}, "not square"),
        ({"model_test_accuracy": 0.9}, "model_test_accuracy is 0.9, the matrix gives 0.83"),
        ({"model_test_accuracy": "NaN"}, "model_test_accuracy is nan"),
        ({"model_test_accuracy": None}, "model_test_accuracy"),
        ({"top_confusions": []}, "top_confusions count [], the matrix gives [5, 2, 2, 1]"),
        ({"baseline_accuracy": 0.1}, "baseline_accuracy 0.1 is not the share of any class"),
        ({"mode": "every"}, "mode is 'every', expected 'no_sync'"),
        ({"extra": 1}, "extra"),
    ],
)
def test_tampered_report_told(change: dict[str, Any], text: str, stored: RunPaths) -> None:
    found = problems_after(stored, "no_sync/report.json", lambda report: report.update(change))
    assert any(text in problem and "artifacts/no_sync/report.json" in problem for problem in found)


@pytest.mark.parametrize("name", ["model.pt", "history.json", "report.json", "sample_test.png"])
@pytest.mark.parametrize("content", [None, b""])
def test_missing_or_empty_file_told(content: bytes | None, name: str, stored: RunPaths) -> None:
    path = stored.artifacts / "every" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    report = verify(stored)
    assert not report.ok
    assert f"artifacts/every/{name} is {'missing' if content is None else 'empty'}" in report.problems


@pytest.mark.parametrize("name", ["history.json", "report.json"])
def test_broken_json_told(name: str, stored: RunPaths) -> None:
    (stored.artifacts / "every" / name).write_text("{half")
    assert any(f"artifacts/every/{name}: content" in problem for problem in verify(stored).problems)


def test_model_that_is_no_archive_told(stored: RunPaths) -> None:
    (stored.artifacts / "every" / "model.pt").write_bytes(b"no archive")
    assert verify(stored).problems == ["artifacts/every/model.pt is not a PyTorch file (not a zip archive)"]


def test_exit_code_tells_faults(stored: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    (stored.artifacts / "every" / "sample_test.png").unlink()
    assert main(["--run-dir", str(stored.root)]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False
