"""Texts that people attach to runs: normalisation and rejected characters."""

import unicodedata


def plain_text(text: str) -> str:
    """Return `text` without surrounding white space.

    Raises ValueError for characters that cannot be shown or stored.
    """
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in text):
        raise ValueError("control characters and lone surrogates are not accepted")
    return text.strip()


def lines_of_text(text: str) -> str:
    """Return `text` with its lines ended by `\\n`. Raises ValueError for characters that cannot be shown or stored."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in text if character not in "\n\t"):
        raise ValueError("control characters (except line breaks and tabs) and lone surrogates are not accepted")
    return text
