"""An invalid folder source is refused by API, page and command, naming the fault; no run is recorded."""

import html
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from app.settings import Settings
from app.storage.cleaning import acquired_names, note_acquired
from tests.support.cli import call
from tests.support.folder_source import COMPOSED, DECOMPOSED, NAME, SIZES, fill, litter, save
from tests.support.pictures import encoded, header_only_png
from tests.support.service import Service, running_service

ANGLES = ["0", "90", "180", "270"]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path / "data")) as running:
        yield running


def large(datasets: Path, data: bytes) -> None:
    fill(datasets, ANGLES)
    (datasets / NAME / "train" / "90" / "photo.png").write_bytes(data)


def empty(datasets: Path) -> None:
    fill(datasets, ANGLES)
    for split in ("train", "test"):
        (datasets / NAME / split / "45").mkdir()


CASES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "class missing in test": (lambda root: fill(root, ANGLES, ["0", "90", "270"]), ["only in train ['180']"]),
    "class missing in train": (lambda root: fill(root, ["0", "90"], ["0", "45", "90"]), ["only in test ['45']"]),
    "empty class": (empty, ["class folder mine/train/45 is empty"]),
    "composed and decomposed": (
        lambda root: fill(root, ["A", COMPOSED], ["A", DECOMPOSED]),
        [f"only in train ['{COMPOSED}' (U+00C9)]", f"only in test ['{DECOMPOSED}' (U+0045 U+0301)]"],
    ),
    "both forms": (
        lambda root: fill(root, ["A", COMPOSED, DECOMPOSED]),
        ["look alike", "U+00C9", "U+0045 U+0301"],
    ),
    "side of ten million": (
        lambda root: large(root, encoded(Image.new("1", (10_000_001, 2)))),
        ["mine/train/90/photo.png", "10000001 x 2 = 20000002 pixels; at most 20000000 are accepted"],
    ),
    "thin side of ten million": (
        lambda root: large(root, encoded(Image.new("1", (10_000_001, 1)))),
        ["mine/train/90/photo.png", "a side of at most 65535 is accepted"],
    ),
    "header of a bomb": (lambda root: large(root, header_only_png(14000, 14000)), ["mine/train/90/photo.png"]),
    "no picture": (lambda root: large(root, b"%PDF-1.7\n"), ["mine/train/90/photo.png", "of type PDF"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_refused_by_name_everywhere(name: str, service: Service, tmp_path: Path) -> None:
    make, words = CASES[name]
    make(service.settings.datasets_dir)
    answer = service.post("/runs", {"kind": "cifar", "params": SIZES})
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    assert error["field"] == "data"
    texts = [error["message"]]
    form = {"kind": "cifar", "preset": "quick", **{f"param.{key}": str(value) for key, value in SIZES.items()}}
    page = service.http.post("/launch", data=form, headers={"Accept": "text/html"})
    assert page.status_code == 422
    texts.append(html.unescape(page.text))
    params = [part for key, value in SIZES.items() for part in ("-p", f"{key}={value}")]
    for given in ({"DDP_AUDIT_PORT": service.url.split(":")[2]}, {}):
        done = call("run", "cifar", *params, data_dir=service.settings.data_dir, **given)
        assert done.returncode == 2
        texts.append(done.stderr)
    for text in texts:
        assert [word for word in words if word not in " ".join(text.split())] == [], text
    assert service.get("/runs").json()["items"] == []


def test_sound_twins_are_recorded(service: Service) -> None:
    """The same folders, repaired, with files left by file managers."""
    source = fill(service.settings.datasets_dir, [*ANGLES, "Cat", "cat", COMPOSED])
    litter(source)
    save(source / "train" / "90" / "photo.png", 1)
    answer = service.post("/runs", {"kind": "cifar", "params": SIZES})
    assert answer.status_code == 201, answer.text
    assert len(service.get("/runs").json()["items"]) == 1


def test_limit_of_the_service_is_the_limit_of_training(tmp_path: Path) -> None:
    """Pictures of 40 x 30: one limit for training and classification."""
    for limit, status in ((1199, 422), (1200, 201)):
        with running_service(Settings(data_dir=tmp_path / str(limit), max_image_pixels=limit)) as service:
            fill(service.settings.datasets_dir, ANGLES)
            answer = service.post("/runs", {"kind": "cifar", "params": SIZES})
            assert answer.status_code == status
            assert ("40 x 30 = 1200 pixels; at most 1199 are accepted" in answer.text) is (status == 422)


def test_leftovers_are_no_data_sets(service: Service) -> None:
    fill(service.settings.datasets_dir, ANGLES)
    before = service.get("/usage").json()
    (service.settings.datasets_dir / "__MACOSX").mkdir()
    for name in ("Thumbs.db", ".DS_Store", "__MACOSX/a"):
        (service.settings.datasets_dir / name).write_bytes(b"x" * 100)
    after = service.get("/usage").json()
    assert [item["name"] for item in after["datasets"]] == [NAME]
    assert after["datasets"] == before["datasets"]
    assert after["other_bytes"] == before["other_bytes"] + 300


def test_leftovers_are_not_acquired(tmp_path: Path) -> None:
    """A file manager may create files while data are fetched; `clean` must not treat them as a data set."""
    settings = Settings(data_dir=tmp_path)
    settings.datasets_dir.mkdir()
    note_acquired(settings, {"cifar10", ".DS_Store", "Thumbs.db", ".acquired.json"})
    assert acquired_names(settings) == {"cifar10"}
    (settings.datasets_dir / ".acquired.json").write_text('["cifar10", "Thumbs.db", "..", "a/b", 5]')
    assert acquired_names(settings) == {"cifar10"}
