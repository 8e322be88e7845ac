"""Pictures of a folder source: the rules and limits of the classifier, before a run is recorded and while preparing."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.folder_source import fill, problems, save
from tests.support.metadata import multi_picture
from tests.support.pictures import encoded, frames, gif_with_large_frame, large_webp_canvas, photo, scan_bomb
from trainer.contract import pictures as contract
from trainer.kinds.cifar.data import preflight
from trainer.kinds.cifar.data.folders import DataProblem, check_header, read_picture

LIMIT = 20_000_000


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Path of a picture added to a valid source: the last one that a check would reach."""
    return fill(tmp_path, ["cat", "dog"]) / "test" / "dog" / "9.png"


def refusal(place: Path, data: bytes) -> str:
    place.write_bytes(data)
    return problems(place.parents[3]).get("data", "")


TOO_LARGE: dict[str, tuple[Callable[[], bytes], str]] = {
    "side and pixels": (lambda: encoded(Image.new("1", (10_000_001, 2))), "10000001 x 2 = 20000002 pixels"),
    "side alone": (lambda: encoded(Image.new("1", (10_000_001, 1))), "10000001 x 1 pixels; a side of at most 65535"),
    "other side": (lambda: encoded(Image.new("1", (1, 10_000_001))), "1 x 10000001 pixels; a side of at most 65535"),
    "canvas of a WebP": (large_webp_canvas, "16384 x 16384 = 268435456 pixels; at most 20000000"),
    "frame of a GIF": (gif_with_large_frame, "65535 x 65535 = 4294836225 pixels; at most 20000000"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_large_picture_is_named_without_decoding(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is left to decode a single picture, but the last one of the source is still refused."""
    make, words = TOO_LARGE[name]
    monkeypatch.setattr(preflight, "DECODE_SECONDS", -1.0)
    found = refusal(place, make())
    assert found.startswith("mine/test/dog/9.png: the picture has ")
    assert words in found
    assert found.endswith("; shrink or remove it")
    for look in (check_header, read_picture):
        with pytest.raises(DataProblem) as refused:
            look(str(place), LIMIT)
        assert str(refused.value) == found
    save(place, 1)
    assert problems(place.parents[3]) == {}


def test_limit_is_the_operators(place: Path) -> None:
    save(place, 1)
    datasets = place.parents[3]
    assert problems(datasets, max_image_pixels=1200) == {}
    assert "40 x 30 = 1200 pixels; at most 1199 are accepted" in problems(datasets, max_image_pixels=1199)["data"]


def test_sound_headers_are_read_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(place, 1)
    monkeypatch.setattr(preflight, "DECODE_SECONDS", -1.0)
    looked: list[str] = []
    monkeypatch.setattr(preflight, "check_header", lambda path, _limit: looked.append(path))
    counts = []
    for change in ("", "", "other size", ""):
        if change:
            save(place, 2)
            os.utime(place, ns=(1, 1))
        problems(place.parents[3])
        counts.append(len(looked))
    assert counts == [9, 9, 18, 18]


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n", encoded(photo(), "TIFF")])
def test_unreadable_picture_is_named(content: bytes, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "DECODE_SECONDS", -1.0)
    assert "mine/test/dog/9.png" in refusal(place, content)


def test_foreign_format_is_told(place: Path) -> None:
    """A classifier would refuse it too: every training picture can also be classified."""
    assert "the file is of type TIFF; accepted are PNG, JPEG, GIF, WebP and BMP" in refusal(
        place, encoded(photo(), "TIFF")
    )


@pytest.mark.parametrize("make", [scan_bomb, lambda: encoded(photo(99, 99))[:-300]], ids=["scans", "truncated"])
def test_undecodable_picture_is_named(make: Callable[[], bytes], place: Path) -> None:
    assert "mine/test/dog/9.png cannot be read as an image" in refusal(place, make())


def test_file_name_of_no_text_is_told(place: Path) -> None:
    with open(os.fsencode(place.parent) + b"/\xff.png", "wb") as file:  # noqa: PTH123
        file.write(b"no picture")
    text = problems(place.parents[3])["data"]
    assert "mine/test/dog/\\xff.png cannot be read" in text
    text.encode()


@pytest.mark.parametrize("data", [frames("GIF"), frames("WEBP"), multi_picture(11)[0]], ids=["gif", "webp", "mpo"])
def test_first_frame_is_learned_from(data: bytes, place: Path) -> None:
    assert refusal(place, data) == ""
    asked = contract.read_picture(io.BytesIO(data), LIMIT)
    assert asked.frame == 0
    assert read_picture(str(place), LIMIT).tobytes() == asked.pixels
    assert np.ptp(read_picture(str(place), LIMIT)) > 0
