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
_known: dict[str, bool] = {}


def _is_library(filename: str) -> bool:
    found = _known.get(filename)
    if found is None:
        path = os.path.abspath(filename)
        found = (
            filename.startswith("<")
            or path.startswith(_HERE)
            or path.startswith(_LIBRARIES)
            or f"{os.sep}site-packages{os.sep}" in path
            or f"{os.sep}dist-packages{os.sep}" in path
        )
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
        if not _is_library(frame.f_code.co_filename):
            return os.path.abspath(frame.f_code.co_filename), frame.f_lineno
        frame = frame.f_back
    return None


def outline(skip: int = 1) -> list[Place]:
    """Return the user's lines on the stack of the caller, innermost first, at most three."""
    found: list[Place] = []
    frame = _frame(skip + 1)
    for _ in range(DEEPEST):
        if frame is None or len(found) == 3:
            break
        if not _is_library(frame.f_code.co_filename):
            found.append((os.path.abspath(frame.f_code.co_filename), frame.f_lineno))
        frame = frame.f_back
    return found
