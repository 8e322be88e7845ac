"""Names that file managers, archivers and notebooks create in folders: never a class, an image or a data set."""

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
"""In lower case; the systems that create them ignore the case."""


def is_leftover(name: str) -> bool:
    """Return whether a file or folder with this name was created by another program; includes hidden ones."""
    return name.startswith(".") or name.lower() in LEFTOVERS
