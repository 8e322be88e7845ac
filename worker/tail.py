"""Reads the files of an attempt's ranks by byte offset, complete lines only, a limited amount at a time."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from trainer.contract.paths import AttemptPaths
from worker.lines import Batch, Heard

RANK_FILE: Final = re.compile(r"^rank(\d{1,6})\.jsonl$")
READ_BYTES: Final = 1 << 20
"""Bytes of one file per transaction; a longer line is not an event."""
PULL_BYTES: Final = 4 << 20
"""Approximate bytes of all files per transaction."""


@dataclass(slots=True, kw_only=True)
class Cursor:
    """How far one rank's file has been read."""

    rank: int
    path: Path
    offset: int = 0
    events: int = 0
    malformed: int = 0
    stored: bool = False
    """Whether the rank has a row."""
    skipping: bool = False
    """Inside a line that is too long; the rest of it is skipped."""
    heard: Heard = field(default_factory=Heard)


@dataclass(slots=True, kw_only=True)
class Reading:
    """Data read from one file that is not stored yet."""

    cursor: Cursor
    after: Cursor
    batch: Batch


class Tails:
    """The files of one attempt, and the read position of each."""

    def __init__(self, paths: AttemptPaths) -> None:
        self._paths = paths
        self.cursors: dict[int, Cursor] = {}

    def find(self) -> None:
        """Detect new files."""
        if not self._paths.root.is_dir():
            return
        for path in self._paths.root.iterdir():
            match = RANK_FILE.match(path.name)
            if match and int(match.group(1)) not in self.cursors:
                rank = int(match.group(1))
                self.cursors[rank] = Cursor(rank=rank, path=path)

    def read(self, *, final: bool) -> list[Reading]:
        """Return what was written since the last `accept`; with `final`, also an incomplete last line, as malformed."""
        self.find()
        readings: list[Reading] = []
        total = 0
        # The least-read rank comes first, so that one rank with much output does not delay the others.
        for cursor in sorted(self.cursors.values(), key=lambda cursor: cursor.offset):
            reading = self._read_one(cursor, final=final)
            if reading is not None:
                readings.append(reading)
                total += reading.after.offset - cursor.offset
            if total >= PULL_BYTES:
                break
        return readings

    def _read_one(self, cursor: Cursor, *, final: bool) -> Reading | None:
        try:
            with cursor.path.open("rb") as handle:
                handle.seek(cursor.offset)
                data = handle.read(READ_BYTES)
        except FileNotFoundError:
            return None
        if not data:
            return None
        whole = data.rfind(b"\n") + 1
        batch = Batch()
        after = replace(cursor, heard=replace(cursor.heard))
        if whole:
            self._take_lines(data[:whole], after, batch)
        elif len(data) == READ_BYTES or final:
            why = "incomplete last line: the attempt ended in the middle of it"
            if len(data) == READ_BYTES:
                why = f"line longer than {READ_BYTES} bytes"
            if not cursor.skipping:
                batch.set_aside(cursor.offset, data, why)
            after.skipping = len(data) == READ_BYTES
            after.offset += len(data)
        else:
            return None
        after.events += len(batch.events)
        after.malformed += len(batch.malformed)
        return Reading(cursor=cursor, after=after, batch=batch)

    def _take_lines(self, data: bytes, after: Cursor, batch: Batch) -> None:
        start = 0
        if after.skipping:
            start = data.index(b"\n") + 1
            after.skipping = False
        batch.read(data[start:], after.offset + start, after.heard)
        after.offset += len(data)

    def accept(self, readings: list[Reading]) -> None:
        """Advance past the stored data."""
        for reading in readings:
            self.cursors[reading.cursor.rank] = reading.after
