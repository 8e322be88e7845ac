"""File types by first bytes: names of formats that are never accepted, and sizes that Pillow would allocate for."""

import re
from typing import Final

SIGNATURES: Final = (
    (0, b"%PDF-", "PDF"),
    (0, b"%!PS", "PostScript"),
    (0, b"8BPS", "Photoshop (PSD)"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (0, b"II+\0", "BigTIFF"),
    (0, b"MM\0+", "BigTIFF"),
    (0, b"\0\0\x01\0", "Windows icon (ICO)"),
    (0, b"icns", "Apple icon (ICNS)"),
    (0, b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"\0\0\0\x0cJXL ", "JPEG XL"),
    (0, b"qoif", "QOI"),
    (0, b"DDS ", "DirectDraw surface (DDS)"),
    (0, b"v/1\x01", "OpenEXR"),
    (0, b"gimp xcf", "GIMP (XCF)"),
    (0, b"\x1aE\xdf\xa3", "Matroska or WebM video"),
    (8, b"AVI ", "AVI video"),
    (8, b"WAVE", "WAVE audio"),
    (0, b"PK\x03\x04", "ZIP archive"),
    (0, b"\x1f\x8b", "gzip archive"),
    (0, b"\x7fELF", "executable"),
)
"""Offset, bytes, name."""

HEIF_BRANDS: Final = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})
AVIF_BRANDS: Final = frozenset({b"avif", b"avis"})
TEXT_START: Final = re.compile(rb"^(?:\xef\xbb\xbf)?\s*<")
PORTABLE: Final = re.compile(rb"^P[1-7fF]\s")
START_BYTES: Final = 4096
JPEG_START: Final = b"\xff\xd8"
JPEG_MARKER: Final = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")
"""A marker before a segment with a length, or the end. Coded data contain neither: there, FF is followed by 00 or by a
restart marker (D0 to D7)."""
JPEG_SCAN: Final = 0xDA
JPEG_ENDS: Final = frozenset({0xD8, 0xD9})
"""End of the image, or start of the next one if the end is missing."""


def never_accepted(data: bytes) -> str | None:
    """Return the name of the format of `data` if that format is never accepted, else None."""
    start = data[:START_BYTES]
    if start[4:8] == b"ftyp":
        return _iso_media(start)
    if TEXT_START.match(start):
        return "SVG" if b"<svg" in start.lower() else "XML or HTML text"
    if PORTABLE.match(start):
        return "portable pixmap (PNM)"
    return next((name for at, magic, name in SIGNATURES if start[at : at + len(magic)] == magic), None)


def webp_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height in the header of a WebP, or None if there are none.

    Layout after https://developers.google.com/speed/webp/docs/riff_container; needed because the decoder allocates its
    whole canvas when the file is opened.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None


def jpeg_scans(data: bytes) -> int:
    """Return the number of scans of the first picture of a JPEG file; 0 for anything but JPEG.

    Follows the segments like a decoder: data inside a segment (a thumbnail), or after the end of the first picture (the
    others of a multi-picture file), is not decoded and does not count.
    """
    scans, at = 0, len(JPEG_START)
    if data[:at] != JPEG_START:
        return 0
    while found := JPEG_MARKER.search(data, at):
        marker, at = found[0][1], found.end()
        if marker in JPEG_ENDS:
            break
        scans += marker == JPEG_SCAN
        at += max(2, int.from_bytes(data[at : at + 2]))
    return scans


def _iso_media(start: bytes) -> str:
    brands = {start[8:12], *(start[at : at + 4] for at in range(16, min(len(start), 64), 4))}
    if start[8:12] in AVIF_BRANDS or (brands & AVIF_BRANDS and not brands & (HEIF_BRANDS - {b"mif1", b"msf1"})):
        return "AVIF"
    if brands & HEIF_BRANDS:
        return "HEIC/HEIF"
    return "MP4 or QuickTime video"
