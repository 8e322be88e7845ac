"""The orientation of an image according to its EXIF block or XMP packet: 1 to 8, or none.

Read here instead of by the image library: there, the effect of damage depends on where a warning is raised, and XMP is
searched with a regular expression that matches the 6 of 60 and the text of a caption.
"""

import struct
from typing import Any, Final
from xml.parsers import expat

UPRIGHT: Final = 1
TAG: Final = 0x0112
VALUES: Final = range(1, 9)
EXIF_START: Final = b"Exif\0\0"
BYTE_ORDERS: Final = {b"II*\0": "<", b"MM\0*": ">"}
INTEGERS: Final = {1: "B", 3: "H", 4: "I"}
"""TIFF types of an unsigned whole number, with their `struct` codes: BYTE, SHORT, LONG."""
ENTRY_BYTES: Final = 12
NAMESPACE: Final = "http://ns.adobe.com/tiff/1.0/"
RESOURCES: Final = frozenset({"xmpmeta", "xapmeta", "RDF", "Description"})
"""Elements around the properties of the image itself; deeper ones belong to other images, such as ingredients."""
MOST_NESTED: Final = 64
MOST_PREFIXES: Final = 16
"""Real XMP is far below both; they limit memory and time for a hostile packet."""


def orientation(info: dict[Any, Any]) -> int:
    """Return the orientation in the metadata found by Pillow (`Image.info`); 1 if there is none.

    EXIF comes first. Without an orientation from 1 to 8 there, XMP is used.
    """
    return exif_orientation(_exif_block(info)) or xmp_orientation(_xmp_packet(info)) or UPRIGHT


def exif_orientation(block: bytes) -> int | None:
    """Return the orientation in the first directory of an EXIF block, None if there is none from 1 to 8.

    One complete entry with one whole number is enough; damage elsewhere in the block has no effect.
    """
    while block.startswith(EXIF_START):
        block = block[len(EXIF_START) :]
    order = BYTE_ORDERS.get(block[:4])
    if order is None or len(block) < 8:
        return None
    (start,) = struct.unpack_from(f"{order}I", block, 4)
    if start + 2 > len(block):
        return None
    (entries,) = struct.unpack_from(f"{order}H", block, start)
    end = min(start + 2 + entries * ENTRY_BYTES, len(block))
    for at in range(start + 2, end - ENTRY_BYTES + 1, ENTRY_BYTES):
        tag, kind, count = struct.unpack_from(f"{order}HHI", block, at)
        if tag == TAG and kind in INTEGERS and count == 1:
            (value,) = struct.unpack_from(order + INTEGERS[kind], block, at + 8)
            if value in VALUES:
                return int(value)
    return None


def xmp_orientation(packet: bytes) -> int | None:
    """Return the property `tiff:Orientation` of an XMP packet, None if there is none from 1 to 8.

    Attribute and element are equivalent. XML that is not well-formed, or that declares entities, is ignored.
    """
    reader = _PacketReader()
    try:
        reader.parser.Parse(packet.lstrip(b"\0 \t\r\n"), True)
    except (expat.ExpatError, _Closed, _Refused, ValueError, LookupError) as error:
        if not isinstance(error, _Closed):
            return None
    return reader.found


class _Closed(Exception):
    """The packet's root element has ended; what follows is padding."""


class _Refused(Exception):
    """The packet does something that XMP never does: it declares a document type, or nests too deeply."""


class _PacketReader:
    """Collects the orientation while a packet is parsed."""

    def __init__(self) -> None:
        self.found: int | None = None
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._refuse
        # Per open element: prefixes bound to the namespace of the property, and whether it is about the image itself.
        self._open: list[tuple[frozenset[str], bool]] = []
        self._words: list[str] | None = None

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        # Some real files omit the declaration, so the usual prefix counts until it is bound to something else.
        prefixes, own = self._open[-1] if self._open else (frozenset({"tiff"}), True)
        bound = {key.removeprefix("xmlns:"): value for key, value in attributes.items() if key.startswith("xmlns:")}
        if bound:
            named = {prefix for prefix, value in bound.items() if value == NAMESPACE}
            prefixes = (prefixes - bound.keys()) | named
        if len(self._open) == MOST_NESTED or len(prefixes) > MOST_PREFIXES:
            raise _Refused
        self._words = [] if own and _is_property(name, prefixes) else None
        inside = own and (not self._open or name.rpartition(":")[2] in RESOURCES)
        if inside:
            for key, value in attributes.items():
                if _is_property(key, prefixes):
                    self._take(value)
        self._open.append((prefixes, inside))

    def _text(self, text: str) -> None:
        if self._words is not None:
            self._words.append(text)

    def _end(self, _name: str) -> None:
        if self._words is not None:
            self._take("".join(self._words))
            self._words = None
        self._open.pop()
        if not self._open:
            raise _Closed

    def _take(self, text: str) -> None:
        value = text.strip()
        if self.found is None and len(value) == 1 and value in "12345678":
            self.found = int(value)

    def _refuse(self, *_declaration: Any) -> None:
        raise _Refused


def _is_property(name: str, prefixes: frozenset[str]) -> bool:
    prefix, _, local = name.partition(":")
    return local == "Orientation" and prefix in prefixes


def _exif_block(info: dict[Any, Any]) -> bytes:
    block = info.get("exif")
    if isinstance(block, bytes):
        return block
    # The older form in PNG: a text of hexadecimal digits after three lines with its name and length.
    profile = info.get("Raw profile type exif")
    try:
        return bytes.fromhex("".join(profile.split("\n")[3:])) if isinstance(profile, str) else b""
    except ValueError:
        return b""


def _xmp_packet(info: dict[Any, Any]) -> bytes:
    packet = info.get("xmp") or info.get("XML:com.adobe.xmp")
    if isinstance(packet, str):
        return packet.encode(errors="replace")
    return packet if isinstance(packet, bytes) else b""
