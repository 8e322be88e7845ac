"""Real pictures as a folder source: decoded once, split by the seed; a damaged one stops the run before torchrun."""

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.stages import LocalRun, StageFailed
from trainer.contract.params import PreflightContext
from trainer.kinds.cifar.data.sources import CIFAR10_CLASSES
from trainer.kinds.cifar.data.split import PreparedData
from trainer.kinds.cifar.params import KIND, CifarParams

ARCHIVE = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10-images.tar.xz"

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not ARCHIVE.is_file(), reason="the pictures are not next to the checkout"),
]

SIZES: dict[str, Any] = {
    "mode": "no_sync",
    "data": "folder:cifar10-images",
    "batch_size": 5,
    "train_size": 80,
    "validation_size": 20,
    "test_size": 30,
}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first ten training and three test pictures of every class."""
    root = tmp_path_factory.mktemp("datasets")
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            path = Path(member.name)
            limit = 10 if "train" in path.parts else 3
            if member.isfile() and int(path.stem) < limit:
                target = root / "cifar10-images" / Path(*path.parts[-3:])
                target.parent.mkdir(parents=True, exist_ok=True)
                source = archive.extractfile(member)
                assert source is not None
                target.write_bytes(source.read())
    return root


def test_pictures_become_splits(datasets: Path, tmp_path: Path) -> None:
    run = LocalRun.create(tmp_path / "1", "cifar", datasets_dir=datasets, **SIZES)
    run.stage("prepare")
    prepared = PreparedData(run.paths)
    card = prepared.card()
    assert card.classes == CIFAR10_CLASSES
    assert card.sizes == {"train": 80, "validation": 20, "test": 30}
    assert card.counts["test"] == [3] * 10
    images, labels = prepared.read("test")
    name = CIFAR10_CLASSES[int(labels[4])]
    with Image.open(datasets / "cifar10-images" / "test" / name / "0001.jpg") as picture:
        assert np.array_equal(images[4], np.asarray(picture.convert("RGB")))
    assert run.events("prepare", kind="progress")[-1]["done"] == 130


def test_preflight_accepts_them(datasets: Path) -> None:
    context = PreflightContext(datasets_dir=datasets)
    assert KIND.preflight(CifarParams.model_validate(SIZES), context) == []


def test_damaged_picture_stops_prepare(datasets: Path, tmp_path: Path) -> None:
    path = datasets / "cifar10-images" / "train" / "frog" / "0004.jpg"
    whole = path.read_bytes()
    path.write_bytes(whole[:-300])
    try:
        run = LocalRun.create(tmp_path / "1", "cifar", datasets_dir=datasets, **SIZES)
        with pytest.raises(StageFailed, match=r"train/frog/0004\.jpg cannot be read as an image"):
            run.stage("prepare")
        (error,) = run.events("prepare", kind="error")
        assert error["error"] == "DataProblem"
    finally:
        path.write_bytes(whole)
