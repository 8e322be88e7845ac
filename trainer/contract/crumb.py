"""The breadcrumb: where a rank is right now, in a small memory-mapped file that outlives the rank.

Fixed layout, little endian, written in place without system calls, so it survives SIGKILL and SIGSTOP. `generation` is
odd while a write is in progress; a reader that sees an odd number, or two different ones around its read, reads again.
"""

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LAYOUT: Final = struct.Struct("<QQdqQB7x32s64s")
"""generation, pid, unix time, step, collectives entered, inside (0/1), phase, operation"""
PATIENCE_SECONDS: Final = 0.2
"""How long a reader waits for a moment without a write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crumb:
    """Last known position of a rank."""

    pid: int
    time: float
    """Unix seconds of the last write."""
    step: int
    """Updates done."""
    collective: int
    """Number of collectives entered so far."""
    inside: bool
    """Whether the newest collective was entered and not left."""
    phase: str
    operation: str
    """Name of the newest collective."""


class CrumbWriter:
    """Writes the breadcrumb of this process."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w+b") as handle:
            handle.truncate(LAYOUT.size)
            self._map = mmap.mmap(handle.fileno(), LAYOUT.size)
        self._generation = 0
        self.phase, self.step, self.collective, self.inside, self.operation = "start", 0, 0, False, ""
        self.flush()

    def flush(self) -> None:
        """Make the current values visible."""
        values = (
            os.getpid(),
            time.time(),
            self.step,
            self.collective,
            self.inside,
            self.phase.encode()[:32],
            self.operation.encode()[:64],
        )
        LAYOUT.pack_into(self._map, 0, self._generation + 1, *values)
        self._generation += 2
        struct.pack_into("<Q", self._map, 0, self._generation)

    def enter(self, operation: str) -> None:
        """Note that a collective is about to start."""
        self.collective += 1
        self.inside, self.operation = True, operation
        self.flush()

    def leave(self) -> None:
        """Note that the newest collective is over."""
        self.inside = False
        self.flush()


def read_crumb(path: Path) -> Crumb | None:
    """Return the position written last, or None when there is none yet."""
    data = _stable_bytes(path)
    if len(data) < LAYOUT.size:
        return None
    generation, pid, at, step, collective, inside, phase, operation = LAYOUT.unpack(data)
    if not generation:
        return None  # created, and nothing written yet
    return Crumb(
        pid=pid,
        time=at,
        step=step,
        collective=collective,
        inside=bool(inside),
        phase=_text(phase),
        operation=_text(operation),
    )


def _stable_bytes(path: Path) -> bytes:
    """Return the file as no write was changing it; empty when there is no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            data, after = os.pread(descriptor, LAYOUT.size, 0), os.pread(descriptor, LAYOUT.size, 0)
            # Equal twice with an even generation: whole. A rank killed in the middle of a write leaves an odd one for
            # ever: then better a torn position than none.
            if data == after and not (data and data[0] % 2):
                return data
            if time.monotonic() > deadline:
                return after
    finally:
        os.close(descriptor)


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode(errors="replace")
