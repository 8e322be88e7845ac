"""The orientation of a picture: 1 to 8 in EXIF, else in XMP; invalid and damaged values count as untagged."""

import io
import random
import warnings

import numpy as np
import pytest
from PIL import Image

from tests.support.metadata import BOTH, EXIF, RDF, XMP, attribute, block, packet, tagged, turned
from trainer.contract.orientation import exif_orientation, xmp_orientation
from trainer.contract.pictures import read_picture
from trainer.contract.pixels import UPRIGHT, pixels

LIMIT = 20_000_000
KINDS = ["PNG", "JPEG", "WEBP"]
# Pillow warns about damaged EXIF when it looks for the resolution of a JPEG.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def shows(data: bytes, upright: Image.Image) -> bool:
    return read_picture(io.BytesIO(data), LIMIT).pixels == pixels(upright).tobytes()


def test_turns_are_told_apart() -> None:
    """The correct value below is not a coincidence: all eight orientations of the picture differ."""
    seen = {pixels(tagged("PNG", value=value).upright).tobytes() for value in range(1, 9)}
    assert (len(seen), len(UPRIGHT)) == (8, 7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EXIF)
def test_exif_value_counts(name: str, kind: str) -> None:
    exif, value = EXIF[name]
    assert exif_orientation(exif) in ({value} if value > 1 else {1, None})
    made = tagged(kind, exif=exif, value=value)
    assert shows(made.data, made.upright)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", XMP)
def test_xmp_value_counts(name: str, kind: str) -> None:
    xmp, value = XMP[name]
    assert xmp_orientation(xmp) in ({value} if value > 1 else {1, None})
    made = tagged(kind, xmp=xmp, value=value)
    assert shows(made.data, made.upright)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BOTH)
def test_exif_comes_first(name: str, kind: str) -> None:
    exif, xmp, value = BOTH[name]
    made = tagged(kind, exif=exif, xmp=xmp, value=value)
    assert shows(made.data, made.upright)


@pytest.mark.parametrize("value", [60, 65535, 8000])
def test_library_pattern_is_not_used(value: int) -> None:
    """The value that Pillow itself reads from such a packet would rotate the picture."""
    with Image.open(io.BytesIO(tagged("PNG", xmp=attribute(value)).data)) as image:
        assert image.getexif()[0x0112] == int(str(value)[0])
    made = tagged("PNG", xmp=attribute(value))
    assert shows(made.data, made.upright)


def test_text_chunk_of_png_counts() -> None:
    """ImageMagick writes EXIF into PNG as hexadecimal text."""
    made = tagged("PNG", value=6)
    profile = f"\nexif\n{len(block(turned(6))):8}\n{block(turned(6)).hex()}\n"
    with Image.open(io.BytesIO(made.data)) as image:
        for text, counts in ((profile, True), (profile + "zz", False)):
            image.info["Raw profile type exif"] = text
            assert np.array_equal(pixels(image), pixels(made.upright)) is counts


def test_warnings_as_errors_change_nothing() -> None:
    made = tagged("PNG", exif=EXIF["more entries stated"][0], value=6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shows(made.data, made.upright)


@pytest.mark.parametrize(("depth", "counts"), [(60, True), (70, False), (500_000, False)])
def test_endless_nesting_is_refused(depth: int, counts: bool) -> None:
    inner = '<rdf:Description tiff:Orientation="6"/>'
    data = f"{'<rdf:RDF>' * depth}{inner}{'</rdf:RDF>' * depth}".encode()
    assert xmp_orientation(data) == (6 if counts else None)


@pytest.mark.parametrize(("number", "counts"), [(10, True), (20, False), (50_000, False)])
def test_endless_prefixes_are_refused(number: int, counts: bool) -> None:
    prefixes = " ".join(f'xmlns:p{index}="http://ns.adobe.com/tiff/1.0/"' for index in range(number))
    assert xmp_orientation(packet("", "p0:Orientation='6'", f"{RDF} {prefixes}")) == (6 if counts else None)


def test_random_damage_never_escapes() -> None:
    draw = random.Random(5)
    sound = [data for data, _value in (*EXIF.values(), *XMP.values())]
    for _ in range(3000):
        data = bytearray(draw.choice(sound))
        for _ in range(draw.randint(1, 6)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        del data[draw.randrange(len(data) + 1) :]
        for found in (exif_orientation(bytes(data)), xmp_orientation(bytes(data))):
            assert found is None or found in range(1, 9)
