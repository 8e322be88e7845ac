"""The breadcrumb: the current position of a rank, in a small memory-mapped file that outlives the rank.

Fixed layout, little endian, written in place without system calls, so it survives SIGKILL and SIGSTOP. Two slots are
written alternately, each with a checksum: if a write is interrupted, the previous slot is intact and is read instead.
"""

import mmap
import os
import struct
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

LAYOUT: Final = struct.Struct("<QQdqQB7x32s64s")
"""generation (1, 2, 3 …), pid, unix time, step, collectives entered, inside (0/1), phase, operation"""
CHECKSUM: Final = struct.Struct("<I4x")
PLACE: Final = LAYOUT.size + CHECKSUM.size
"""Bytes of one of the two slots: the position and its CRC-32."""
PATIENCE_SECONDS: Final = 0.2
"""How long a reader retries if writes are so fast that both slots change while it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crumb:
    """Last known position of a rank."""

    pid: int
    time: float
    """Unix seconds of the last write."""
    step: int
    """Finished updates."""
    collective: int
    """Number of collectives entered so far."""
    inside: bool
    """Whether the latest collective was entered and not left."""
    phase: str
    operation: str
    """Name of the latest collective."""


class CrumbWriter:
    """Writes the breadcrumb of this process. Raises FileNotFoundError when its folder is not there."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as handle:
            handle.truncate(2 * PLACE)
            self._map = mmap.mmap(handle.fileno(), 2 * PLACE)
        self._generation = 0
        self.phase, self.step, self.collective, self.inside, self.operation = "start", 0, 0, False, ""
        self.flush()

    def flush(self) -> None:
        """Make the current values visible."""
        self._generation += 1
        position = LAYOUT.pack(
            self._generation,
            os.getpid(),
            time.time(),
            self.step,
            self.collective,
            self.inside,
            self.phase.encode()[:32],
            self.operation.encode()[:64],
        )
        begin = self._generation % 2 * PLACE
        self._map[begin : begin + PLACE] = position + CHECKSUM.pack(zlib.crc32(position))

    def enter(self, operation: str) -> None:
        """Record that a collective is about to start."""
        self.collective += 1
        self.inside, self.operation = True, operation
        self.flush()

    def leave(self) -> None:
        """Record that the latest collective has ended."""
        self.inside = False
        self.flush()


def read_crumb(path: Path) -> Crumb | None:
    """Return the latest completely written position, or None if there is none yet."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            data = os.pread(descriptor, 2 * PLACE, 0)
            found = [values for begin in (0, PLACE) if (values := _position(data[begin : begin + PLACE]))]
            if found:
                return _crumb(max(found))
            if not any(data) or time.monotonic() > deadline:  # created, but nothing written yet
                return None
    finally:
        os.close(descriptor)


def _position(place: bytes) -> tuple[Any, ...] | None:
    if len(place) < PLACE or not any(place):
        return None
    position, checksum = place[: LAYOUT.size], place[LAYOUT.size :]
    return LAYOUT.unpack(position) if CHECKSUM.unpack(checksum)[0] == zlib.crc32(position) else None


def _crumb(values: tuple[Any, ...]) -> Crumb:
    _generation, pid, at, step, collective, inside, phase, operation = values
    return Crumb(
        pid=pid,
        time=at,
        step=step,
        collective=collective,
        inside=bool(inside),
        phase=_text(phase),
        operation=_text(operation),
    )


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode(errors="replace")
