"""Where in the user's source something happens: the innermost frame that is neither a library's nor the probe's."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType

Place = tuple[str, int]
"""File and line."""
DEEPEST = 60
"""Frames looked through."""
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARIES = tuple(
    sorted(
        {
            os.path.abspath(path) + os.sep
            for key, path in sysconfig.get_paths().items()
            if key in ("stdlib", "platstdlib", "purelib", "platlib")
        }
    )
)
MOST_KNOWN = 10_000
"""File names remembered; code that is made while a script runs can have a new one each time."""
_known: dict[str, str] = {}
"""File name of a frame -> its absolute path, empty for a library's."""


def _own(filename: str) -> str:
    """Return the absolute path of a file of the user's, an empty text for a library's or the probe's."""
    found = _known.get(filename)
    if found is None:
        path = os.path.abspath(filename)
        library = (
            filename.startswith("<")
            or path.startswith(_HERE)
            or path.startswith(_LIBRARIES)
            or f"{os.sep}site-packages{os.sep}" in path
            or f"{os.sep}dist-packages{os.sep}" in path
        )
        found = "" if library else path
        if len(_known) < MOST_KNOWN:
            _known[filename] = found
    return found


def _frame(skip: int) -> FrameType | None:
    """Return a frame further up; the nearest one where the stack is not that deep, as at a script's outermost level."""
    try:
        return sys._getframe(skip)  # inspect.currentframe gives the same, slower to walk
    except ValueError:
        return sys._getframe(1)


def place(skip: int = 1) -> Place | None:
    """Return the user's innermost line on the stack of the caller, None where the script is all library."""
    frame = _frame(skip + 1)
    for _ in range(DEEPEST):
        if frame is None:
            return None
        path = _own(frame.f_code.co_filename)
        if path:
            return path, frame.f_lineno
        frame = frame.f_back
    return None


def outline(skip: int = 1) -> list[Place]:
    """Return the user's lines on the stack of the caller, innermost first, at most three."""
    found: list[Place] = []
    frame = _frame(skip + 1)
    for _ in range(DEEPEST):
        if frame is None or len(found) == 3:
            break
        path = _own(frame.f_code.co_filename)
        if path:
            found.append((path, frame.f_lineno))
        frame = frame.f_back
    return found
