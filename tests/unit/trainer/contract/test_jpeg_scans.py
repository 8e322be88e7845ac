"""Scans of a JPEG: only those of its first picture count, in any wrapping."""

import io

import pytest

from tests.support.metadata import block, multi_picture, turned
from tests.support.pictures import encoded, photo, scan_bomb
from trainer.contract.pictures import MAX_JPEG_SCANS, Picture, PictureRefused, read_picture
from trainer.contract.sniff import jpeg_scans

SCAN, END = b"\xff\xda", b"\xff\xd9"


def read(data: bytes) -> Picture:
    return read_picture(io.BytesIO(data), 10**6)


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2) + content


def with_segment(data: bytes, content: bytes, at: int = 2) -> bytes:
    return data[:at] + segment(0xE5, content) + data[at:]


def test_pictures_behind_the_first_do_not_count() -> None:
    """Eleven progressive pictures of ten scans each: the file has 110, the decoded picture has ten."""
    several, first = multi_picture(11)
    assert several.count(SCAN) == 110 > MAX_JPEG_SCANS
    assert jpeg_scans(several) == jpeg_scans(first) == 10
    assert (read(several).frame, read(first).frame) == (0, None)
    assert read(several).pixels == read(first).pixels
    other = multi_picture(11, seed=3)[0]
    assert read(other).pixels != read(first).pixels


@pytest.mark.parametrize("progressive", [True, False])
def test_second_picture_may_be_cut(progressive: bool) -> None:
    several, first = multi_picture(2, progressive=progressive)
    for end in (len(several) - 200, several.rindex(b"\xff\xd8") + 300):
        assert (read(several[:end]).frame, read(several[:end]).pixels) == (0, read(first).pixels)
    with pytest.raises(PictureRefused, match="truncated"):
        read(several[: len(first) // 2])


def test_too_many_scans_are_refused_wherever_the_end_seems_to_be() -> None:
    bomb, (several, first) = scan_bomb(), multi_picture(2)
    last = bomb.rindex(SCAN)
    for data in (
        bomb,
        bomb + several,
        with_segment(bomb, b"before " + END),
        with_segment(bomb, b"between " + END + SCAN, at=last),
        bomb[:last] + b"\xff\xff" + bomb[last:],
        bomb[:-2],
        bomb[:-2] + several,
    ):
        with pytest.raises(PictureRefused, match="more than 100 scans"):
            read(data)
    for behind in (bomb, bytes(2) + bomb[2:]):  # the second has no start that would be read as a segment
        assert read(first + behind).pixels == read(first).pixels


def test_scans_within_a_segment_do_not_count() -> None:
    plain = encoded(photo(), "JPEG")
    thumbnail = encoded(photo(16, 16), "JPEG", progressive=True)
    exif = block(turned(6), tail=thumbnail)
    for data in (with_segment(plain, SCAN * 200), encoded(photo(), "JPEG", exif=exif)):
        assert jpeg_scans(data) == 1 < data.count(SCAN)
        read(data)


@pytest.mark.parametrize("data", [b"", b"\xff\xd8", b"\xff\xd8\xff", b"\xff\xd8" + SCAN, b"\x89PNG" + SCAN * 9, SCAN])
def test_anything_else_is_counted_without_fault(data: bytes) -> None:
    assert jpeg_scans(data) == (1 if data == b"\xff\xd8" + SCAN else 0)
