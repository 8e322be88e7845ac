"""Captured output as a terminal would show it: no colours, no cursor moves, no overwritten text."""

import re
from typing import Final

LINE_CHARACTERS: Final = 4_000
"""Maximum length of one line; longer ones are truncated and marked."""
TERMINAL: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-~])"
)
"""Terminal control sequences: colours, cursor moves, window titles."""
VISIBLE: Final = {code: 0x2400 + code for code in range(0x20) if code != ord("\t")} | {
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}
"""Remaining control characters, mapped to Unicode's control pictures."""


def shown(text: str) -> str:
    """Return text as the page shows it: as a terminal would show it, with over-long lines truncated and marked."""
    text = "\n".join(_settled(line) for line in text.split("\n"))
    return text if len(text) <= LINE_CHARACTERS else f"{text[:LINE_CHARACTERS]} … ({len(text):,} characters)"


def _settled(line: str) -> str:
    """Return a line without colours, cursor moves and overwritten text; other control characters are made visible."""
    if line.isprintable():
        return line
    line = TERMINAL.sub("", line)
    written = [part for part in line.split("\r") if part.strip()]
    line = written[-1] if written else ""
    if "\b" in line:
        kept: list[str] = []
        for character in line:
            if character != "\b":
                kept.append(character)
            elif kept:
                kept.pop()
        line = "".join(kept)
    return line.translate(VISIBLE)
