"""A real run on a folder source: its labels are the folder names, in order, from the pictures to the answer."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from app.inference.local import classify_files
from tests.support.cli import call, start
from tests.support.folder_source import COMPOSED, NAME, SIZES, fill, litter, problems, save
from tests.support.pictures import encoded
from tests.support.stages import LocalRun, StageFailed
from trainer.contract.result import ConfusionPanel
from trainer.kinds.cifar.audit.artifacts import ModeArtifacts
from trainer.kinds.cifar.data.split import PreparedData

NAMES = [*(str(number) for number in range(11)), COMPOSED]
LABELS = ["0", "1", "10", "2", "3", "4", "5", "6", "7", "8", "9", COMPOSED]
TRAINED: dict[str, Any] = {
    "data": f"folder:{NAME}", "mode": "no_sync", "precision": "fp32", "epochs": 2, "batch_size": 2, "accum_steps": 2,
    "train_size": 32, "validation_size": 4, "test_size": 12,
}  # fmt: skip


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("datasets")
    litter(fill(root, NAMES))
    return root


@pytest.mark.torchrun
def test_labels_are_the_folder_names(datasets: Path, tmp_path: Path) -> None:
    run = LocalRun.create(tmp_path / "1", "cifar", datasets_dir=datasets, **TRAINED)
    run.stage("prepare")
    images, labels = PreparedData(run.paths).read("test")
    # `fill` gave each picture a shade that encodes its class.
    assert [NAMES.index(LABELS[label]) * 20 for label in labels] == images[:, 0, 0, 0].tolist()
    for stage in run.plan[1:]:
        run.stage(stage.name)
    result = run.result()
    assert result.verdict == "pass"
    (matrix,) = (panel for panel in result.panels if isinstance(panel, ConfusionPanel))
    assert matrix.labels == LABELS
    assert [sum(row) for row in matrix.counts] == [1] * 12
    artifacts = ModeArtifacts(run.paths, "no_sync")
    confusions = json.loads((artifacts.model.parent / "report.json").read_text())["top_confusions"]
    assert {item[side] for item in confusions for side in ("true", "predicted")} <= set(LABELS)
    (answer,) = classify_files(
        artifacts.model, [datasets / NAME / "test" / "10" / "0.png"], max_pixels=10**6, max_bytes=10**6
    )
    assert list(answer.document(1).probabilities) == LABELS


@pytest.mark.torchrun
def test_command_trains_and_answers_by_folder_names(tmp_path: Path) -> None:
    """A complete workflow with the operator's limit just high enough: launch, matrix, prediction."""
    fill(tmp_path / "datasets", NAMES)
    params = [part for name, value in TRAINED.items() for part in ("-p", f"{name}={value}")]
    limit = {"DDP_AUDIT_MAX_IMAGE_PIXELS": "1200"}
    process = start("run", "cifar", "--json", *params, data_dir=tmp_path, **limit)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    (matrix,) = (item for item in json.loads(out)["result"]["panels"] if item["type"] == "confusion_matrix")
    assert matrix["labels"] == LABELS
    assert json.loads((tmp_path / "runs" / "1" / "config.json").read_text())["max_image_pixels"] == 1200
    picture = str(tmp_path / "datasets" / NAME / "test" / "10" / "0.png")
    done = call("predict", picture, "--json", data_dir=tmp_path, **limit)
    assert list(done.document["probabilities"]) == LABELS
    assert done.document["class"] in LABELS


def test_names_that_differ_in_case_are_told(tmp_path: Path) -> None:
    for number, (names, count) in enumerate([(["Cat", "cat", "dog"], 1), (["cat", "dog"], 0)]):
        fill(tmp_path / str(number), names)
        run = LocalRun.create(tmp_path / f"run-{number}", "cifar", datasets_dir=tmp_path / str(number), **SIZES)
        run.stage("prepare")
        warnings = [event["text"] for event in run.events("prepare", kind="message") if event["level"] == "warning"]
        told = "classes 'Cat' and 'cat' differ only in upper and lower case; they are trained as two classes"
        assert warnings == [told] * count
        assert PreparedData(run.paths).card().classes == tuple(names)


def test_prepare_keeps_to_the_same_limits(tmp_path: Path) -> None:
    """A picture added after the launch is refused by the same rule and text as at launch."""
    place = fill(tmp_path / "datasets", ["cat", "dog"]) / "test" / "dog" / "0.png"
    run = LocalRun.create(tmp_path / "1", "cifar", datasets_dir=tmp_path / "datasets", **SIZES)
    place.write_bytes(encoded(Image.new("1", (10_000_001, 1))))
    words = r"mine/test/dog/0\.png: the picture has 10000001 x 1 pixels; a side of at most 65535 is accepted"
    with pytest.raises(StageFailed, match=words):
        run.stage("prepare")
    (error,) = run.events("prepare", kind="error")
    assert (error["error"], error["text"]) == ("DataProblem", problems(tmp_path / "datasets")["data"])
    save(place, 1)
    run.stage("prepare", attempt=2)


def test_prepare_keeps_to_the_limit_of_the_operator(tmp_path: Path) -> None:
    fill(tmp_path / "datasets", ["cat", "dog"])
    run = LocalRun.create(tmp_path / "1", "cifar", datasets_dir=tmp_path / "datasets", **SIZES)
    config = json.loads(run.paths.config.read_text())
    run.paths.config.write_text(json.dumps({**config, "max_image_pixels": 1199}))
    with pytest.raises(StageFailed, match="40 x 30 = 1200 pixels; at most 1199 are accepted"):
        run.stage("prepare")
    run.paths.config.write_text(json.dumps({**config, "max_image_pixels": 1200}))
    run.stage("prepare", attempt=2)
