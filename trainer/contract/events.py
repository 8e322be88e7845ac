"""Event lines: the output of a rank, one JSON object per line.

A line is `{"seq": n, "t": unix seconds, "type": ..., **fields}`. `seq` counts from 0 per file, a file
belongs to one rank of one attempt, and only that rank appends to it.
"""

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

EVENT_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "start": frozenset({"pid", "host", "device", "backend", "world_size", "versions"}),
    "phase": frozenset({"phase", "step"}),
    "progress": frozenset({"done", "total", "unit"}),
    "metrics": frozenset({"step", "values"}),
    "sync": frozenset({"step", "count", "bytes"}),
    "checkpoint": frozenset({"step", "path"}),
    "message": frozenset({"level", "text"}),
    "error": frozenset({"error", "text", "phase", "step", "traceback"}),
    "end": frozenset(),
}
"""Required fields per event type; additional fields are accepted, a line with missing ones is malformed."""

NON_FINITE: Final[Mapping[str, float]] = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}


def encode_number(value: float | None) -> float | str | None:
    """Return `value` in a form that JSON can represent: non-finite floats become their names, None becomes null."""
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def decode_number(value: float | str | None) -> float | None:
    """Invert `encode_number`.

    Raises ValueError for a string that is not the name of a non-finite number.
    """
    if isinstance(value, str):
        if value not in NON_FINITE:
            raise ValueError(f"not a number: {value!r}; strings allowed are {sorted(NON_FINITE)}")
        return NON_FINITE[value]
    return value


def encodable(value: Any) -> Any:
    """Return a copy of `value` in which every non-finite float is replaced by its name, at any depth."""
    if isinstance(value, float):
        return encode_number(value)
    if isinstance(value, Mapping):
        return {str(key): encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(item) for item in value]
    return value


class EventWriter:
    """Appends complete event lines to one file; readers see them immediately.

    Raises FileNotFoundError if its folder does not exist.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._seq = 0

    def write(self, event_type: str, **fields: Any) -> None:
        """Append one event.

        Raises ValueError if the type is unknown or a required field is missing, OSError if the disk is full.
        """
        missing = EVENT_FIELDS.get(event_type)
        if missing is None:
            raise ValueError(f"unknown event type {event_type!r}; known are {sorted(EVENT_FIELDS)}")
        if missing - fields.keys():
            raise ValueError(f"event {event_type!r} lacks {sorted(missing - fields.keys())}")
        record = {"seq": self._seq, "t": time.time(), "type": event_type, **encodable(fields)}
        data = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        # A short write happens only on a full disk; then the rest must raise an error, not corrupt the next line.
        while data:
            data = data[os.write(self._fd, data) :]
        self._seq += 1

    def close(self) -> None:
        """Close the file; further writes are errors."""
        os.close(self._fd)
