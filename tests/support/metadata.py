"""Pictures with every kind of orientation, valid, damaged and nonsensical, and the correct value for each."""

import io
import struct
from dataclasses import dataclass
from typing import Final

from PIL import Image, PngImagePlugin

from tests.support.pictures import encoded, photo
from trainer.contract.pixels import UPRIGHT

TAG: Final = 0x0112
BYTE, ASCII, SHORT, LONG, RATIONAL = 1, 2, 3, 4, 5
X_RESOLUTION: Final = 0x011A
XMP_START: Final = '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>'
XMP_END: Final = "\n" + " " * 200 + '<?xpacket end="w"?>'
RDF: Final = 'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:tiff="http://ns.adobe.com/tiff/1.0/"'


def entry(tag: int, kind: int, count: int, value: bytes, order: str = "<") -> bytes:
    """Return one entry of an EXIF directory; `value` is the content of its last four bytes."""
    return struct.pack(f"{order}HHI", tag, kind, count) + value.ljust(4, b"\0")


def block(*entries: bytes, order: str = "<", tail: bytes = b"", count: int | None = None) -> bytes:
    """Return an EXIF block with one directory of these entries, which may state another `count` of them."""
    start = b"Exif\0\0" + (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8)
    stated = struct.pack(f"{order}H", len(entries) if count is None else count)
    return start + stated + b"".join(entries) + bytes(4) + tail


def turned(value: int, kind: int = SHORT, count: int = 1, order: str = "<") -> bytes:
    """Return an entry that states an orientation."""
    width = {BYTE: "B", SHORT: "H", LONG: "I"}[kind]
    return entry(TAG, kind, count, struct.pack(order + width, value), order)


def packet(inner: str, attributes: str = "", declared: str = RDF) -> bytes:
    """Return an XMP packet whose description has these attributes and holds these elements."""
    description = f'<rdf:Description rdf:about="" {attributes}>{inner}</rdf:Description>'
    body = f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF {declared}>{description}</rdf:RDF></x:xmpmeta>'
    return f"{XMP_START}{body}{XMP_END}".encode()


def attribute(value: object, quote: str = '"') -> bytes:
    """Return a packet that states an orientation in an attribute."""
    return packet("", f"tiff:Orientation={quote}{value}{quote}")


def element(value: object) -> bytes:
    """Return a packet that states an orientation in an element."""
    return packet(f"<tiff:Orientation>{value}</tiff:Orientation>")


EXIF: Final[dict[str, tuple[bytes, int]]] = {
    **{f"intact {value}": (block(turned(value)), value) for value in range(1, 9)},
    **{f"nonsense {value}": (block(turned(value)), 1) for value in (0, 9, 60, 65535)},
    "other byte order": (block(turned(6, order=">"), order=">"), 6),
    "as byte": (block(turned(6, BYTE)), 6),
    "as long": (block(turned(6, LONG)), 6),
    "nonsense long": (block(turned(0x00060000, LONG)), 1),
    "as text": (block(entry(TAG, ASCII, 2, b"6\0")), 1),
    "as fraction": (block(entry(TAG, RATIONAL, 1, struct.pack("<I", 26)), tail=struct.pack("<II", 6, 1)), 1),
    "list of two": (block(entry(TAG, SHORT, 2, struct.pack("<HH", 6, 6))), 1),
    "list of none": (block(entry(TAG, SHORT, 0, b"\6")), 1),
    "next to 0/0": (block(turned(6), entry(X_RESOLUTION, RATIONAL, 1, struct.pack("<I", 38)), tail=bytes(8)), 6),
    "behind 0/0": (block(entry(X_RESOLUTION, RATIONAL, 1, struct.pack("<I", 38)), turned(6), tail=bytes(8)), 6),
    "behind an address outside": (block(entry(X_RESOLUTION, RATIONAL, 1, b"\xff" * 4), turned(6)), 6),
    "behind an unknown type": (block(entry(0x9999, 77, 2**31, b"????"), turned(6)), 6),
    "marker twice": (b"Exif\0\0" + block(turned(6)), 6),
    "cut behind the entry": (block(turned(6))[: 6 + 8 + 2 + 12], 6),
    "cut within the entry": (block(turned(6))[: 6 + 8 + 2 + 11], 1),
    "cut after 20 bytes": (block(turned(6))[:20], 1),
    "cut before the directory": (block(turned(6))[:10], 1),
    "more entries stated": (block(turned(6), count=65535), 6),
    "no entries stated": (block(turned(6), count=0), 1),
    "nonsense before sense": (block(turned(9), turned(6)), 6),
    "no byte order": (block(turned(6)).replace(b"II*\0", b"XX*\0"), 1),
    "directory outside": (block(turned(6)).replace(b"II*\0\x08\0\0\0", b"II*\0\xff\xff\xff\xff"), 1),
    "noise": (b"Exif\0\0II*\0" + b"\xff" * 60, 1),
}
"""Name -> EXIF block, the orientation that counts."""

XMP: Final[dict[str, tuple[bytes, int]]] = {
    **{f"attribute {value}": (attribute(value), value) for value in range(1, 9)},
    "attribute in single quotes": (attribute(6, "'"), 6),
    "element": (element(6), 6),
    "element with spaces": (element("\n 6 \n"), 6),
    "as a character reference": (attribute("&#54;"), 6),
    "another prefix": (packet("<t:Orientation>6</t:Orientation>", declared=RDF.replace(":tiff=", ":t=")), 6),
    "prefix not declared": (packet("", "tiff:Orientation='6'", RDF.partition(" xmlns:tiff")[0]), 6),
    "prefix of another vocabulary": (packet("", "tiff:Orientation='6'", RDF.replace("tiff/1.0", "exif/1.0")), 1),
    **{f"attribute {value!r}": (attribute(value), 1) for value in (0, 9, 60, 65535, 8000, -6, "6.0", "", "06", "6 6")},
    **{f"element {value!r}": (element(value), 1) for value in (0, 9, 60, 65535, 8000, "x6", "<b>6</b>")},
    "nonsense in single quotes": (attribute(60, "'"), 1),
    "words of a caption": (packet('<dc:title>tiff:Orientation="6" tiff:Orientation>6</dc:title>'), 1),
    "comment": (packet('<!-- tiff:Orientation="6" --><!-- <tiff:Orientation>6</tiff:Orientation> -->'), 1),
    "of an ingredient": (
        packet("<xmpMM:Pantry><rdf:li><rdf:Description tiff:Orientation='6'/></rdf:li></xmpMM:Pantry>"),
        1,
    ),
    "name that begins alike": (packet("", 'tiff:OrientationNote="6"'), 1),
    "not well-formed": (attribute(6).replace(b"</rdf:RDF>", b""), 1),
    "cut": (attribute(6)[:-300], 1),
    "no XML": (b'tiff:Orientation="6"', 1),
    "entity": (b'<!DOCTYPE x [<!ENTITY six "6">]>' + attribute("&six;").partition(b"?>")[2], 1),
}  # fmt: skip
"""Name -> XMP packet, the orientation that counts."""

BOTH: Final[dict[str, tuple[bytes, bytes, int]]] = {
    "EXIF wins": (block(turned(6)), attribute(3), 6),
    "upright EXIF wins": (block(turned(1)), attribute(3), 1),
    "EXIF of nonsense leaves it to XMP": (block(turned(0)), attribute(3), 3),
    "damaged EXIF leaves it to XMP": (block(turned(6))[:20], attribute(3), 3),
    "nonsense in both": (block(turned(9)), attribute(60), 1),
}
"""Name -> EXIF block, XMP packet, the orientation that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """A picture file with metadata."""

    data: bytes
    upright: Image.Image
    """The picture as a person sees it."""


def tagged(kind: str, exif: bytes = b"", xmp: bytes = b"", value: int = 1) -> Tagged:
    """Return a picture of format PNG, JPEG or WEBP with this metadata, and the expected picture if `value` applies."""
    stored = photo(64, 48)
    options: dict[str, object] = {"exif": exif} if exif else {}
    if kind == "PNG" and xmp:
        options["pnginfo"] = text = PngImagePlugin.PngInfo()
        text.add_itxt("XML:com.adobe.xmp", xmp.decode())
    elif xmp:
        options["xmp"] = xmp
    if kind == "WEBP":
        options["lossless"] = True
    data = encoded(stored, kind, **options)
    with Image.open(io.BytesIO(encoded(stored, kind, **({"lossless": True} if kind == "WEBP" else {})))) as plain:
        plain.load()
        turn = UPRIGHT.get(value)
        return Tagged(data=data, upright=plain.copy() if turn is None else plain.transpose(turn))


def multi_picture(count: int = 11, *, progressive: bool = True, seed: int = 0) -> tuple[bytes, bytes]:
    """Return a multi-picture JPEG as cameras write it, and its first picture saved alone."""
    pictures = [photo(96, 64, seed=seed + number).rotate(90 * number) for number in range(count)]
    options = {"progressive": progressive, "quality": 90}
    buffer = io.BytesIO()
    pictures[0].save(buffer, "MPO", save_all=True, append_images=pictures[1:], **options)
    return buffer.getvalue(), encoded(pictures[0], "JPEG", **options)
