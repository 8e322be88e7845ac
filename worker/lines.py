"""Bytes of a rank's event file -> events, metric points, and malformed lines; no database here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from app.runs.telemetry.packing import NULL
from trainer.contract.events import EVENT_FIELDS, NON_FINITE

LARGEST_STEP: Final = 2**53
LARGEST_LOCAL_RANK: Final = 1 << 20
LATEST: Final = 2.0**32
KEPT_CHARACTERS: Final = 4096
"""Maximum stored length of a malformed line."""
LONGEST_NAME: Final = 500
"""Characters of a metric's name: it is part of an index, whose entries a database server bounds."""
NUMBERS: Final = frozenset({int, float})


class Malformed(ValueError):
    """The line is not an event; the text says why."""


@dataclass(slots=True, kw_only=True)
class Heard:
    """What a rank has reported so far, as shown in its row and its stage's row."""

    started: bool = False
    started_at: float | None = None
    pid: int | None = None
    host: str = ""
    node: str = ""
    """Name of its machine in a cluster, else that of the host."""
    local_rank: int | None = None
    device: str = ""
    phase: str = ""
    step: int | None = None
    ended: bool = False
    newest: float = 0.0
    """Unix seconds of the latest event."""
    progress: tuple[float, float | None, str] | None = None
    """done, total, unit."""


@dataclass(slots=True, kw_only=True)
class Points:
    """Points of one metric within a batch."""

    first: int
    """Index of the first event, within the batch."""
    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Batch:
    """Parsed complete lines of one file."""

    events: list[tuple[str, str]] = field(default_factory=list)
    """(type, line), in order."""
    metrics: dict[str, Points] = field(default_factory=dict)
    malformed: list[tuple[int, str, str]] = field(default_factory=list)
    """(byte offset, text, why)."""

    def read(self, data: bytes, offset: int, heard: Heard) -> None:
        """Parse `data`, complete lines starting at byte `offset` of the file, and update `heard`."""
        for line in data.split(b"\n"):
            if line.strip():
                try:
                    self._event(line, heard)
                except Malformed as error:
                    self.set_aside(offset, line, str(error))
            offset += len(line) + 1

    def set_aside(self, offset: int, line: bytes, why: str) -> None:
        """Record a line that is not an event."""
        self.malformed.append((offset, line[: KEPT_CHARACTERS * 4].decode(errors="replace")[:KEPT_CHARACTERS], why))

    def _event(self, line: bytes, heard: Heard) -> None:
        record = parse(line)
        event_type = record["type"]
        if event_type == "metrics":
            self._metrics(record)
        take = TAKERS.get(event_type)
        if take is not None:
            take(heard, record)
        heard.newest = max(heard.newest, record["t"])
        self.events.append((event_type, line.decode()))

    def _metrics(self, record: Mapping[str, Any]) -> None:
        step, values = record["step"], record["values"]
        if type(values) is not dict:
            raise Malformed("values of a metrics event must be an object")
        if max(map(len, values), default=0) > LONGEST_NAME:
            raise Malformed(f"the name of a metric has at most {LONGEST_NAME} characters")
        x = NULL if step is None else float(_step(step))
        if not NUMBERS.issuperset(map(type, values.values())):
            values = {key: _number(key, value) for key, value in values.items()}
        metrics, index = self.metrics, len(self.events)
        for key, value in values.items():
            points = metrics.get(key)
            if points is None:
                points = metrics[key] = Points(first=index)
            points.steps.append(x)
            points.values.append(value)


def parse(line: bytes) -> dict[str, Any]:
    """Return the event of a line. Raises Malformed."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error}") from None
    if type(record) is not dict:
        raise Malformed("not a JSON object")
    event_type = record.get("type")
    required = EVENT_FIELDS.get(event_type) if type(event_type) is str else None
    if required is None:
        raise Malformed(f"unknown event type {event_type!r}"[:200])
    if not required <= record.keys():
        raise Malformed(f"event {event_type!r} lacks {', '.join(sorted(required - record.keys()))}")
    if type(record.get("seq")) is not int or type(record.get("t")) not in NUMBERS:
        raise Malformed("seq must be an integer and t a number")
    if not 0 <= record["t"] < LATEST:
        raise Malformed(f"t is not a time in unix seconds: {record['t']!r}")
    return record


def _step(value: Any) -> int:
    if type(value) is not int or abs(value) > LARGEST_STEP:
        raise Malformed(f"step must be an integer, got {value!r}"[:200])
    return int(value)


def _number(key: str, value: Any) -> float:
    if value is None:
        return NULL
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and value in NON_FINITE:
        return float(NON_FINITE[value])
    raise Malformed(f"metric {key!r} is not a number: {value!r}"[:200])


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Malformed(f"{name} must be text, got {value!r}"[:200])
    return value[:200]


def _take_start(heard: Heard, record: Mapping[str, Any]) -> None:
    if type(record["pid"]) is not int or not 0 < record["pid"] < 2**31:
        raise Malformed(f"pid must be a positive integer, got {record['pid']!r}"[:200])
    heard.host, heard.device = _text("host", record["host"]), _text("device", record["device"])
    heard.node = _text("node", record.get("node", heard.host))
    heard.pid = record["pid"]
    local = record.get("local_rank")
    heard.local_rank = local if type(local) is int and 0 <= local < LARGEST_LOCAL_RANK else None
    heard.started, heard.started_at = True, record["t"]
    heard.phase = heard.phase or "start"


def _take_phase(heard: Heard, record: Mapping[str, Any]) -> None:
    phase, step = _text("phase", record["phase"]), record["step"]
    heard.step = heard.step if step is None else _step(step)
    heard.phase = phase


def _take_step(heard: Heard, record: Mapping[str, Any]) -> None:
    if record["step"] is not None:
        heard.step = _step(record["step"])


def _take_progress(heard: Heard, record: Mapping[str, Any]) -> None:
    done, total = record["done"], record["total"]
    if type(done) not in NUMBERS or (total is not None and type(total) not in NUMBERS):
        raise Malformed(f"done and total must be numbers, got {done!r} and {total!r}"[:200])
    heard.progress = (float(done), None if total is None else float(total), _text("unit", record["unit"]))


def _take_end(heard: Heard, _record: Mapping[str, Any]) -> None:
    heard.ended, heard.phase = True, "end"


TAKERS: Final[Mapping[str, Callable[[Heard, Mapping[str, Any]], None]]] = {
    "start": _take_start,
    "phase": _take_phase,
    "metrics": _take_step,
    "sync": _take_step,
    "checkpoint": _take_step,
    "progress": _take_progress,
    "end": _take_end,
}
"""How each event type updates the rows of rank and stage."""
