"""Previews of a run's files: pictures, formatted JSON, CSV as a table, text; anything else is a download."""

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.formats import size
from app.runs.results.artifacts import Artifact, media_type

TEXT_BYTES: Final = 200_000
"""Maximum number of bytes shown of a text file."""
PICTURE_BYTES: Final = 10_000_000
INDENTED_CHARACTERS: Final = 1_000_000
"""Indenting can make deep JSON a thousand times longer; beyond this it is shown unchanged."""
TABLE_ROWS: Final = 200
TABLE_COLUMNS: Final = 40
JSON_TYPE: Final = "application/json"
CSV_TYPE: Final = "text/csv; charset=utf-8"
PLAIN: Final = "text/plain"


class Offered(Artifact):
    """An artifact and its form of preview."""

    look: str
    """`picture`, `text`, or empty for a download."""
    why: str
    """Why it is not shown; empty if it is shown."""


def offered(item: Artifact) -> Offered:
    """Return an artifact and its form of preview."""
    look, why = _look(item.media_type, item.bytes)
    return Offered(**dict(item), look=look, why=why)


def _look(kind: str, length: int) -> tuple[str, str]:
    if kind.startswith("image/"):
        fits = length <= PICTURE_BYTES
        why = f"A picture of {size(length)} is too large to be shown here (up to {size(PICTURE_BYTES)})."
        return ("picture", "") if fits else ("", why)
    if kind.startswith(PLAIN) or kind in (JSON_TYPE, CSV_TYPE):
        return "text", ""
    return "", "Files of this type are not shown here."


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The beginning of a file, as text or as a table."""

    note: str
    """Description of the shown part."""
    text: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def preview_of(path: Path) -> Preview:
    """Return the preview of a text file; a file that does not match its name's type is shown as plain text."""
    with path.open("rb") as handle:
        data = handle.read(TEXT_BYTES)
        length = handle.seek(0, io.SEEK_END)
    text = data.decode(errors="replace")
    cut = f"The first {len(data):,} of {length:,} bytes." if length > len(data) else ""
    kind = media_type(path)
    found = _table(text, cut) if kind == CSV_TYPE else _ordered(text, cut) if kind == JSON_TYPE else None
    return found or Preview(note=cut or f"{length:,} bytes.", text=text)


def _ordered(text: str, cut: str) -> Preview | None:
    """Return indented JSON; None if it is truncated or damaged, or if indenting would make it far too long."""
    if cut:
        return None
    pieces, length = [], 0
    try:
        for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
            pieces.append(piece)
            length += len(piece)
            if length > INDENTED_CHARACTERS:
                return None
        found = "".join(pieces)
        found.encode()  # lone surrogates, which JSON can hold and no page
    except (ValueError, RecursionError):  # damaged, or nested too deeply
        return None
    return Preview(note="JSON, indented for readability.", text=found)


def _table(text: str, cut: str) -> Preview | None:
    """Return a plain CSV file as a table; None if its rows differ in length."""
    whole = text.rpartition("\n")[0] if cut else text
    try:
        lines = [tuple(line) for line in csv.reader(io.StringIO(whole), strict=True)]
    except csv.Error:
        return None
    if len(lines) < 2 or not 1 < len(lines[0]) <= TABLE_COLUMNS or any(len(line) != len(lines[0]) for line in lines):
        return None
    shown = lines[1 : 1 + TABLE_ROWS]
    rows = f"{len(shown):,} of {len(lines) - 1:,} rows" if len(lines) - 1 > len(shown) else f"{len(shown):,} rows"
    note = f"{cut} " if cut else ""
    return Preview(note=f"{note}{rows}.", columns=lines[0], rows=tuple(shown))
