"""Names that file managers, archivers and notebooks leave in folders: nobody's class, picture or data set."""

from typing import Final

LEFTOVERS: Final = frozenset(
    {
        "__macosx",
        "thumbs.db",
        "ehthumbs.db",
        "desktop.ini",
        "icon\r",
        "@eadir",
        "$recycle.bin",
        "system volume information",
        "lost+found",
    }
)
"""In lower case; the systems that write them do not mind the case."""


def is_leftover(name: str) -> bool:
    """Return whether a file or folder of this name was put there by a program and is nobody's: hidden ones included."""
    return name.startswith(".") or name.lower() in LEFTOVERS
