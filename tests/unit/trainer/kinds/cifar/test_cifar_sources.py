"""Data sources: missing or damaged ones are refused before a run is recorded, naming the file and the remedy."""

import hashlib
import pickle
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from torchvision.datasets import CIFAR10

from tests.support.folder_source import save
from trainer.contract.kinds import resolve_params
from trainer.contract.params import PreflightContext
from trainer.kinds.cifar.data import folders
from trainer.kinds.cifar.data import preflight as module
from trainer.kinds.cifar.data.acquire import LICENCE_NOTICE, acquire, main
from trainer.kinds.cifar.data.pool import open_pool
from trainer.kinds.cifar.data.sources import CIFAR10_CLASSES, CIFAR10_FOLDER, CIFAR10_MD5
from trainer.kinds.cifar.params import KIND, CifarParams

SMALL: dict[str, Any] = {"batch_size": 1, "accum_steps": 2, "train_size": 4, "validation_size": 2, "test_size": 2}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two classes with three training and one test picture each, as `folder:mine`."""
    for split, count in (("train", 3), ("test", 1)):
        for shade, name in enumerate(("cat", "dog")):
            for number in range(count):
                save(tmp_path / "mine" / split / name / f"{number}.png", 100 * shade + number)
    return tmp_path


def params(**given: Any) -> CifarParams:
    found = resolve_params(KIND, None, {"data": "folder:mine", **SMALL, **given})
    assert isinstance(found, CifarParams)
    return found


def problems(datasets: Path, **given: Any) -> dict[str, str]:
    context = PreflightContext(datasets_dir=datasets)
    return {problem.field: problem.message for problem in KIND.preflight(params(**given), context)}


def test_sound_folder_accepted(pictures: Path) -> None:
    assert problems(pictures) == {}
    pool = open_pool(params(), pictures)
    images, labels = pool.train.fetch(np.array([5, 0]), lambda _: None)
    assert (images.shape, labels.tolist()) == ((2, 32, 32, 3), [1, 0])
    assert (images[0].min(), images[1].max()) == (102, 0)


def test_missing_folder_says_where(tmp_path: Path) -> None:
    assert "put the images into mine/train/<class>/" in problems(tmp_path)["data"]


def test_missing_split_named(pictures: Path) -> None:
    (pictures / "mine" / "test").rename(pictures / "mine" / "tests")
    assert "no folder test/" in problems(pictures)["data"]


def test_other_classes_named(pictures: Path) -> None:
    save(pictures / "mine" / "test" / "horse" / "0.png", 1)
    assert "only in test ['horse']" in problems(pictures)["data"]


def test_empty_class_named(pictures: Path) -> None:
    for split in ("train", "test"):
        (pictures / "mine" / split / "horse").mkdir()
    assert "class folder mine/train/horse is empty" in problems(pictures)["data"]


def test_single_class_refused(pictures: Path) -> None:
    for split in ("train", "test"):
        for path in (pictures / "mine" / split / "dog").iterdir():
            path.unlink()
        (pictures / "mine" / split / "dog").rmdir()
    assert "has 1 class folders; it needs 2 to" in problems(pictures)["data"]


def test_too_many_classes_refused(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MAX_CLASSES", 1)
    assert "has 2 class folders; it needs 2 to 1" in problems(pictures)["data"]


def test_too_few_pictures_counted(pictures: Path) -> None:
    found = problems(pictures, train_size=8, validation_size=1, test_size=3)
    assert "8 + validation_size 1 = 9, but folder:mine has 6 training images" in found["train_size"]
    assert "has 2 test images; use at most 2" in found["test_size"]


def test_missing_cifar10_says_acquire(tmp_path: Path) -> None:
    assert "run `ddp-audit acquire cifar10` first" in problems(tmp_path, data="cifar10")["data"]


def test_bf16_refused_by_cpu_flags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = {"data": "synthetic", "precision": "bf16", "device": "cpu"}
    monkeypatch.setattr(module, "_cpu_flags", lambda: frozenset({"sse2", "avx2"}))
    assert "use precision auto or fp32" in problems(tmp_path, **asked)["precision"]
    monkeypatch.setattr(module, "_cpu_flags", lambda: frozenset({"sse2", "avx512bw"}))
    assert problems(tmp_path, **asked) == {}


def test_checksums_are_torchvisions() -> None:
    listed = dict([*CIFAR10.train_list, *CIFAR10.test_list, (CIFAR10.meta["filename"], CIFAR10.meta["md5"])])
    assert listed == CIFAR10_MD5


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def served() -> Iterator[Callable[[Path], str]]:
    """Serves folders on the loopback interface; torchvision's downloader needs a length, which file URLs lack."""
    servers: list[ThreadingHTTPServer] = []

    def serve(folder: Path) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
        servers.append(server)
        Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: Callable[[Path], str]) -> Path:
    """A small archive in the official layout, with torchvision configured to accept its checksums."""
    folder = tmp_path / "made" / CIFAR10_FOLDER
    folder.mkdir(parents=True)
    generator = np.random.default_rng(3)
    checksums = {}
    for name in CIFAR10_MD5:
        rows = 2 if name != "batches.meta" else 0
        document = {
            "data": generator.integers(0, 255, (rows, 3072), dtype=np.uint8),
            "labels": [3, 5][:rows],
            "label_names": list(CIFAR10_CLASSES),
        }
        (folder / name).write_bytes(pickle.dumps(document))
        checksums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    path = tmp_path / "made" / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, CIFAR10_FOLDER)
    monkeypatch.setattr(CIFAR10, "url", served(path.parent) + path.name)
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(path.read_bytes()).hexdigest())
    monkeypatch.setattr(CIFAR10, "train_list", [[name, checksums[name]] for name, _ in CIFAR10.train_list])
    monkeypatch.setattr(CIFAR10, "test_list", [[name, checksums[name]] for name, _ in CIFAR10.test_list])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": checksums["batches.meta"]})
    for name, value in checksums.items():
        monkeypatch.setitem(CIFAR10_MD5, name, value)
    return path


def test_acquire_fetches_and_verifies(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    datasets = tmp_path / "datasets"
    assert main(["--datasets-dir", str(datasets), "cifar10"]) == 0
    assert LICENCE_NOTICE in capsys.readouterr().out
    assert problems(datasets, data="cifar10") == {}
    pool = open_pool(params(data="cifar10"), datasets)
    images, labels = pool.train.fetch(np.arange(10), lambda _: None)
    assert (images.shape, labels.tolist()) == ((10, 32, 32, 3), [3, 5] * 5)


def test_damaged_download_refused(archive: Path, tmp_path: Path) -> None:
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    archive.write_bytes(content)
    outcome = acquire("cifar10", tmp_path / "datasets")
    assert not outcome.ok
    assert "could not be fetched or verified" in outcome.text


def test_damaged_file_named(archive: Path, tmp_path: Path) -> None:
    datasets = tmp_path / "datasets"
    assert acquire("cifar10", datasets).ok
    path = datasets / "cifar10" / CIFAR10_FOLDER / "data_batch_3"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    message = problems(datasets, data="cifar10")["data"]
    assert "data_batch_3 has checksum" in message
    assert "run `ddp-audit acquire cifar10` again" in message
    path.unlink()
    assert "data_batch_3 is missing" in problems(datasets, data="cifar10")["data"]


def test_nothing_to_get_said(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--datasets-dir", str(pictures), "synthetic"]) == 0
    assert main(["--datasets-dir", str(pictures), "folder:mine", "--json"]) == 0
    assert "6 training and 2 test images of 2 classes are available" in capsys.readouterr().out
    assert main(["--datasets-dir", str(pictures), "folder:other"]) == 1
    assert main(["--datasets-dir", str(pictures), "imagenet"]) == 2
