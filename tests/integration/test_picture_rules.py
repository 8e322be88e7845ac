"""One set of rules for pictures: REST, page, command, model file and training see the same pixels."""

import html
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from app.inference.choose import model_path
from app.inference.local import classify_files
from app.settings import Settings
from tests.support.cli import Done, call
from tests.support.folder_source import SIZES, fill
from tests.support.inference import CLASSES, network
from tests.support.metadata import BOTH, EXIF, XMP, multi_picture, tagged
from tests.support.pages_data import add_run
from tests.support.pictures import encoded, frames, photo
from tests.support.service import Service, running_service
from tests.support.stages import LocalRun
from trainer.common.model_file import save_model
from trainer.contract.pixels import UPRIGHT, pixels
from trainer.kinds.cifar.data.split import PreparedData

METADATA: Final[dict[str, tuple[bytes, bytes, int]]] = {
    **{f"EXIF {name}": (exif, b"", value) for name, (exif, value) in EXIF.items()},
    **{f"XMP {name}": (b"", xmp, value) for name, (xmp, value) in XMP.items()},
    **{f"both: {name}": given for name, given in BOTH.items()},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A service with a model, and files to classify."""

    service: Service
    folder: Path

    def rest(self, data: bytes) -> dict[str, Any]:
        answer = self.service.http.post("/api/v1/predict", files={"file": ("a", data)})
        assert answer.status_code == 200, answer.text
        document: dict[str, Any] = answer.json()
        return document

    def page(self, data: bytes) -> str:
        answer = self.service.http.post("/classify", files={"file": ("a", data)}, headers={"Accept": "text/html"})
        assert answer.status_code == 200
        return html.unescape(answer.text)

    def command(self, data: bytes, *options: str) -> Done:
        path = self.folder / "asked"
        path.write_bytes(data)
        done = call("predict", str(path), *options, data_dir=self.folder, DDP_AUDIT_PORT=self.service.url.split(":")[2])
        assert done.returncode == 0, done.stderr
        return done

    @property
    def model(self) -> Path:
        return model_path(self.service.settings.runs_dir, 1, "cifar", {"mode": "no_sync"})


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    folder = tmp_path_factory.mktemp("asked")
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as service:
        add_run(service.engine, "succeeded", kind="cifar", verdict="pass", params={"mode": "no_sync"})
        made = Asked(service=service, folder=folder)
        made.model.parent.mkdir(parents=True)
        save_model(made.model, network(), classes=CLASSES, seed=47)
        yield made


@pytest.fixture(scope="module")
def turns(asked: Asked) -> dict[int, dict[str, float]]:
    """Orientation -> probabilities of the picture it shows, stored upright."""
    found = {value: asked.rest(encoded(tagged("PNG", value=value).upright))["probabilities"] for value in range(1, 9)}
    assert len({tuple(row.values()) for row in found.values()}) == 8
    return found


@pytest.mark.parametrize("name", METADATA)
def test_rest_turns_by_the_rule(name: str, asked: Asked, turns: dict[int, dict[str, float]]) -> None:
    exif, xmp, value = METADATA[name]
    document = asked.rest(tagged("PNG", exif, xmp).data)
    assert document["probabilities"] == turns[value]
    assert "frame" not in document


@pytest.mark.parametrize("name", ["EXIF intact 6", "EXIF nonsense 60", "XMP attribute 6", "XMP attribute 8000"])
def test_page_and_command_turn_alike(name: str, asked: Asked, turns: dict[int, dict[str, float]]) -> None:
    exif, xmp, value = METADATA[name]
    data, expected = tagged("PNG", exif, xmp).data, turns[value]
    assert asked.command(data, "--json").document["probabilities"] == expected
    best = max(expected, key=lambda name: expected[name])
    assert f"{best}, " in asked.page(data)
    assert f"{100 * expected[best]:.2f} %" in asked.page(data)


def test_model_file_turns_alike(asked: Asked, turns: dict[int, dict[str, float]]) -> None:
    files = []
    for number, (exif, xmp, _value) in enumerate(METADATA.values()):
        files.append(asked.folder / f"{number}.png")
        files[-1].write_bytes(tagged("PNG", exif, xmp).data)
    answers = classify_files(asked.model, files, max_pixels=10**6, max_bytes=10**6)
    for answer, (_exif, _xmp, value) in zip(answers, METADATA.values(), strict=True):
        assert answer.document(None).probabilities == turns[value]


def test_training_turns_alike(tmp_path: Path) -> None:
    """The prepare stage of a real run over a folder of such files: every picture upright, by the same rule."""
    source = fill(tmp_path / "datasets", ["a", "b"])
    for number, (exif, xmp, _value) in enumerate(METADATA.values()):
        for kind in ("PNG", "JPEG"):
            name = f"{kind}-{number:03}.{kind.lower()}"
            (source / "test" / "b" / name).write_bytes(tagged(kind, exif, xmp).data)
    several, first = multi_picture(11)
    (source / "test" / "b" / "several.jpeg").write_bytes(several)
    (source / "test" / "b" / "single.jpeg").write_bytes(first)
    count = 2 * len(METADATA) + 4
    sizes = {**SIZES, "test_size": count, "mode": "no_sync"}
    run = LocalRun.create(tmp_path / "1", "cifar", datasets_dir=tmp_path / "datasets", **sizes)
    run.stage("prepare")
    images, _labels = PreparedData(run.paths).read("test")
    for start, kind in ((2, "JPEG"), (2 + len(METADATA), "PNG")):
        shown = {value: pixels(tagged(kind, value=value).upright) for value in (1, *UPRIGHT)}
        for place, (name, (_exif, _xmp, value)) in enumerate(METADATA.items(), start):
            assert np.array_equal(images[place], shown[value]), (kind, name)
    assert np.array_equal(images[-2], images[-1])


@pytest.mark.parametrize(
    "data",
    [multi_picture(11)[0], multi_picture(2)[0][:-200], frames("GIF"), frames("WEBP")],
    ids=["eleven progressive pictures", "second picture cut", "GIF", "WebP"],
)
def test_first_picture_is_said(data: bytes, asked: Asked) -> None:
    assert asked.rest(data)["frame"] == 0
    assert "this is the answer for frame 0, the first one" in asked.page(data)
    assert asked.command(data, "--json").document["frame"] == 0
    assert "this is the answer for frame 0, the first one" in asked.command(data).stdout


def test_single_picture_says_no_frame(asked: Asked) -> None:
    data = encoded(photo(), "JPEG")
    assert "frame" not in asked.rest(data)
    assert "frame" not in asked.page(data).partition('id="answer"')[2]
    assert "frame" not in asked.command(data, "--json").document
    assert "frame" not in asked.command(data).stdout


def test_first_of_several_answers_as_if_alone(asked: Asked) -> None:
    several, first = multi_picture(11)
    assert asked.rest(several)["probabilities"] == asked.rest(first)["probabilities"]
    assert asked.rest(several)["probabilities"] != asked.rest(multi_picture(11, seed=5)[0])["probabilities"]
