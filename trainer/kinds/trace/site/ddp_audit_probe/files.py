"""What one rank writes: event lines, a breadcrumb, and records for the judgement; all of it bounded.

Event lines and breadcrumb have the form that docs/architecture.md gives for every rank, the records that of
docs/trace-files.md. Before a process is known to be a rank nothing is written.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import socket
import struct
import threading
import time
import zlib
from collections.abc import Mapping
from typing import Any

LAYOUT = struct.Struct("<QQdqQB7x32s64s")
CHECKSUM = struct.Struct("<I4x")
PLACE = LAYOUT.size + CHECKSUM.size
MOST_EVENTS = 200_000
"""Lines of one rank's event file."""
MOST_RECORD_BYTES = 64 << 20
"""Of one rank's records."""


def plain(value: Any) -> Any:
    """Return `value` as JSON carries it: numbers that are not finite become their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


class Lines:
    """A file of JSON lines, appended to by this process alone, up to a number of bytes."""

    def __init__(self, path: str, most: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._left = most
        self._lock = threading.Lock()
        self.dropped = 0
        """Lines that had no room any more."""

    def write(self, document: Any, *, always: bool = False) -> None:
        """Append one line; `always` is for the last words, which have room in any case."""
        data = json.dumps(plain(document), separators=(",", ":"), default=str).encode() + b"\n"
        with self._lock:
            if len(data) > self._left and not always:
                self.dropped += 1
                return
            self._left -= len(data)
            while data:
                data = data[os.write(self._descriptor, data) :]


class Crumb:
    """The breadcrumb: where this rank is, in memory that outlives it."""

    def __init__(self, path: str) -> None:
        with open(path, "w+b") as handle:
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
        """Note that a collective is about to start."""
        self.collective += 1
        self.inside, self.operation = True, operation
        self.flush()

    def leave(self) -> None:
        """Note that the newest collective is over."""
        self.inside = False
        self.flush()

    def at(self, phase: str) -> None:
        """Note which phase this rank is in."""
        self.phase = phase
        self.flush()


class Files:
    """Everything one rank writes."""

    def __init__(self, folder: str, rank: int) -> None:
        os.makedirs(folder, exist_ok=True)
        self.folder, self.rank = folder, rank
        self._events = Lines(os.path.join(folder, f"rank{rank}.jsonl"), MOST_EVENTS * 400)
        self._records = Lines(os.path.join(folder, f"rank{rank}.trace"), MOST_RECORD_BYTES)
        self.crumb = Crumb(os.path.join(folder, f"rank{rank}.crumb"))
        self._seq = 0
        self._lock = threading.Lock()

    @property
    def dropped(self) -> int:
        """Lines that had no room any more."""
        return self._events.dropped + self._records.dropped

    def event(self, kind: str, *, always: bool = False, **fields: Any) -> None:
        """Append one event."""
        with self._lock:
            self._events.write({"seq": self._seq, "t": time.time(), "type": kind, **fields}, always=always)
            self._seq += 1

    def failed(self, error: str, text: str, traceback: str) -> None:
        """Say which exception ends this rank, and where it was."""
        crumb = self.crumb
        place = {"phase": crumb.phase, "step": crumb.step}
        self.event("error", always=True, error=error, text=text, traceback=traceback, **place)
        with open(os.path.join(self.folder, f"rank{self.rank}.error.json"), "w") as handle:
            json.dump({"error": error, "last_line": text.splitlines()[-1] if text else error, **place}, handle)

    def record(self, kind: str, *, always: bool = False, **fields: Any) -> None:
        """Append one record."""
        self._records.write({"record": kind, **fields}, always=always)

    def start(self, device: str, backend: str, world_size: int, versions: Mapping[str, str]) -> None:
        """Say who this rank is."""
        local = os.environ.get("LOCAL_RANK", "")
        place: dict[str, Any] = {"local_rank": int(local)} if local.isdigit() else {}
        self.event(
            "start",
            pid=os.getpid(),
            host=socket.gethostname(),
            node=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
            device=device,
            backend=backend,
            world_size=world_size,
            versions=dict(versions),
            **place,
        )


class Waiting:
    """Stands in for `Files` until the process is known to be a rank: keeps the first records, writes nothing."""

    MOST = 10_000

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def record(self, kind: str, **fields: Any) -> None:
        """Keep one record."""
        if len(self.records) < self.MOST:
            self.records.append({"record": kind, **fields})


def hand_over(waiting: Waiting, files: Files) -> None:
    """Write what was kept."""
    for record in waiting.records:
        kind = record.pop("record")
        files.record(kind, **record)
    waiting.records = []
