"""Bytes to pixels: every mode and orientation is decoded correctly, and hostile input is refused."""

import io
import random
import tracemalloc

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFile

from app.inference.errors import ImageRefused
from app.inference.images import read_picture
from tests.support.pictures import AVIF, HEIC, HOSTILE, encoded, exif, frames, photo, resized_jpeg_header
from trainer.contract.pixels import UPRIGHT, pixels

LIMIT = 20_000_000
# Pillow warns about damaged EXIF; the decoding child ignores these warnings too.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def read(data: bytes, limit: int = LIMIT) -> NDArray[np.int16]:
    flat = np.frombuffer(read_picture(data, limit).pixels, dtype=np.uint8)
    return flat.reshape(32, 32, 3).astype(np.int16)


def refusal_of(data: bytes) -> ImageRefused | None:
    try:
        assert len(read_picture(data, LIMIT).pixels) == 32 * 32 * 3
    except ImageRefused as refusal:
        return refusal
    return None


def single(color: object, mode: str = "RGBA") -> bytes:
    return encoded(Image.new(mode, (32, 32), color))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "YCbCr"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    image = photo().convert("I").convert("I;16") if mode == "I;16" else photo().convert(mode)
    kind = "JPEG" if mode in {"CMYK", "YCbCr"} else "PNG"
    assert read(encoded(image, kind)).shape == (32, 32, 3)


def test_plain_picture_is_untouched() -> None:
    image = photo(32, 32)
    assert np.array_equal(read(encoded(image)), np.asarray(image))
    assert np.array_equal(read(encoded(image)), pixels(image))


@pytest.mark.parametrize(
    ("color", "seen"),
    [
        ((255, 0, 0, 0), (255, 255, 255)),
        ((0, 0, 0, 0), (255, 255, 255)),
        ((0, 0, 0, 128), (127, 127, 127)),
        ((0, 0, 255, 128), (127, 127, 255)),
        ((10, 20, 30, 255), (10, 20, 30)),
    ],
)
def test_transparency_stands_on_white(color: tuple[int, ...], seen: tuple[int, ...]) -> None:
    assert read(single(color))[0, 0].tolist() == list(seen)


def test_hidden_colour_changes_nothing() -> None:
    alpha = Image.linear_gradient("L").resize((48, 40)).point(lambda value: 0 if value < 128 else value)
    shown, hidden = photo(), photo(seed=9)
    hidden.paste((255, 0, 255), mask=alpha.point(lambda value: 255 if value == 0 else 0))
    hidden.paste(shown, mask=alpha.point(lambda value: 255 if value > 0 else 0))
    assert shown.tobytes() != hidden.tobytes()
    for image in (shown, hidden):
        image.putalpha(alpha)
    assert np.array_equal(read(encoded(shown)), read(encoded(hidden)))


@pytest.mark.parametrize("mode", ["L", "RGB", "1"])
def test_transparent_colour_of_png(mode: str) -> None:
    image = Image.new(mode, (32, 32), 0)
    key: object = (0, 0, 0) if mode == "RGB" else 0
    assert read(encoded(image, transparency=key)).min() == 255
    assert read(encoded(image)).max() == 0


def test_palette_transparency_stands_on_white() -> None:
    image = Image.new("P", (32, 32), 0)
    image.putpalette([200, 0, 0, 0, 200, 0])
    assert read(encoded(image, transparency=0)).min() == 255
    assert read(encoded(image, transparency=bytes([0, 255]))).min() == 255
    assert read(encoded(image))[0, 0].tolist() == [200, 0, 0]


def test_sixteen_bits_keep_their_contrast() -> None:
    grey = np.linspace(0, 65535, 32 * 32).astype(np.uint16).reshape(32, 32)
    found = read(encoded(Image.fromarray(grey)))
    assert np.array_equal(found[..., 0], grey >> 8)
    transparent = Image.new("I;16", (32, 32), 1000)
    assert read(encoded(transparent, transparency=1000)).min() == 255
    assert read(encoded(transparent)).max() == 3


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_orientation_is_applied(orientation: int, kind: str) -> None:
    upright = photo(36, 24)
    undo = {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}.get(orientation, UPRIGHT.get(orientation))
    stored = upright if undo is None else upright.transpose(undo)
    options = {"lossless": True} if kind == "WEBP" else {"quality": 100, "subsampling": 0} if kind == "JPEG" else {}
    found = read(encoded(stored, kind, exif=exif(orientation), **options))
    limit = 6 if kind == "JPEG" else 0
    assert abs(found - read(encoded(upright))).max() <= limit
    if orientation != 1:
        assert abs(read(encoded(stored, kind, **options)) - read(encoded(upright))).max() > 50


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_unknown_orientation_is_upright(value: int) -> None:
    assert np.array_equal(read(encoded(photo(), exif=exif(value))), read(encoded(photo())))


def test_cmyk_jpeg_keeps_colours() -> None:
    red = Image.new("CMYK", (32, 32), (0, 255, 255, 0))
    assert abs(read(encoded(red, "JPEG", quality=100)) - (255, 0, 0)).max() <= 3
    rgb = read(encoded(photo(), "JPEG", quality=100))
    assert abs(read(encoded(photo().convert("CMYK"), "JPEG", quality=100)) - rgb).mean() < 3


def test_first_frame_is_used_and_named() -> None:
    for kind in ("GIF", "PNG", "WEBP"):
        assert read_picture(frames(kind), LIMIT).frame == 0
        assert read_picture(encoded(photo(), kind), LIMIT).frame is None
    first, last = (encoded(photo(seed=number).rotate(90 * number), "GIF") for number in (0, 2))
    assert np.array_equal(read(frames("GIF")), read(first))
    assert not np.array_equal(read(frames("GIF")), read(last))


@pytest.mark.parametrize(("data", "name"), [(HEIC, "HEIC"), (AVIF, "AVIF"), (encoded(photo(), "TIFF"), "TIFF")])
def test_refusal_names_the_format(data: bytes, name: str) -> None:
    with pytest.raises(ImageRefused, match=name) as refusal:
        read_picture(data, LIMIT)
    assert refusal.value.status == 415


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused(name: str) -> None:
    make, statuses = HOSTILE[name]
    refusal = refusal_of(make())
    assert (200 if refusal is None else refusal.status) in statuses
    assert refusal is None or len(refusal.detail) > 20


def test_hostile_bytes_cost_no_memory() -> None:
    uploads = [make() for make, _ in HOSTILE.values()]
    process = psutil.Process()
    before, highest = process.memory_info().rss, 0
    for data in uploads:
        refusal_of(data)
        highest = max(highest, process.memory_info().rss)
    assert highest - before < 60 * 2**20


def test_pixel_limit_precedes_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(photo(100, 100))
    assert read(data, 10_000).shape == (32, 32, 3)
    monkeypatch.setattr(Image.Image, "load", lambda _self: pytest.fail("decoded before the limit was checked"))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _self: pytest.fail("decoded before the limit was checked"))
    with pytest.raises(ImageRefused, match="100 x 100 = 10000 pixels; at most 9999"):
        read_picture(data, 9_999)


@pytest.mark.parametrize("size", [(65_535, 2), (2, 65_535)])
@pytest.mark.parametrize("kind", ["PNG", "BMP"])
def test_side_has_a_limit_too(size: tuple[int, int], kind: str) -> None:
    """Resizing a line of ten million pixels takes hundreds of megabytes, although it contains few pixels."""
    assert read(encoded(Image.new("RGB", size, (1, 2, 3)), kind))[0, 0].tolist() == [1, 2, 3]
    longer = (size[0] + (size[0] > 2), size[1] + (size[1] > 2))
    with pytest.raises(ImageRefused, match=f"{longer[0]} x {longer[1]} pixels; a side of at most 65535") as refusal:
        read(encoded(Image.new("RGB", longer), kind))
    assert (refusal.value.status, refusal.value.code) == (422, "too_many_pixels")


def test_limit_has_no_warning_zone() -> None:
    tracemalloc.start()
    for side in (9000, 10000, 13000, 14000):
        with pytest.raises(ImageRefused, match=f"{side} x {side}"):
            read_picture(resized_jpeg_header(side, side), LIMIT)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_random_damage_never_escapes(kind: str) -> None:
    """Flip, cut and splice: the outcome is a picture or a refusal, never another exception."""
    draw = random.Random(kind)
    good = encoded(photo(), kind)
    refused = 0
    for _ in range(300):
        data = bytearray(good)
        for _ in range(draw.randint(1, 8)):
            data[draw.randrange(min(len(data), draw.choice([40, 200, len(data)])))] = draw.randrange(256)
        if draw.random() < 0.3:
            del data[draw.randrange(len(data)) :]
        refused += refusal_of(bytes(data)) is not None
    assert refused > 0


def test_truncated_files_stay_refused() -> None:
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False
    half = encoded(photo(400, 400), "JPEG")
    half = half[: len(half) // 2]
    Image.open(io.BytesIO(half)).verify()  # Pillow's own check finds nothing
    with pytest.raises(ImageRefused, match="truncated"):
        read_picture(half, LIMIT)
