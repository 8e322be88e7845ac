"""The log of a run as its page shows it: timed messages, and captured output read from byte offsets.

A place in the log is a `LogCursor`: the newest event and, per attempt, the bytes of every output file already shown. A
page that was rendered at a cursor and a stream that starts there show every line once.
"""

import base64
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.runs.ordering import LARGEST_ID
from app.runs.telemetry.logs import STREAMS, LogFile
from app.web.runlog.terminal import LINE_CHARACTERS, shown
from trainer.contract.paths import RunPaths

TAIL_BYTES: Final = 24_000
"""Shown of each file when the page is rendered."""
STEP_BYTES: Final = 64_000
"""Sent of each file in one message of the live stream."""
BEHIND_BYTES: Final = 1_000_000
"""A file further ahead than this is skipped to its end, and the log says so."""
COUNT_BYTES: Final = 8_000_000
"""Of what is skipped at most so much is read to count its lines."""
COUNT_STEP: Final = 1 << 20
MOST_LINES: Final = 400
FILE_NAME: Final = re.compile(r"^rank(\d{1,6})\.(stdout|stderr)$")
TEXT_EVENTS: Final = frozenset({"start", "message", "error", "checkpoint", "phase", "end"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of the log."""

    source: str
    text: str
    css: str = ""
    left_lines: int = 0
    """Lines this one stands for: it is a note about them, not a line of the log."""
    left_bytes: int = 0
    """Bytes it stands for whose lines nobody counted."""

    @property
    def is_note(self) -> bool:
        """Whether it tells of lines that are not shown."""
        return bool(self.left_lines or self.left_bytes)


def left_out(source: str, lines: int, count_bytes: int = 0) -> LogLine:
    """Return the note that stands for lines, and for bytes whose lines were not counted."""
    parts = [f"{lines:,} lines"] if lines else []
    parts += [f"{count_bytes:,} bytes"] if count_bytes else []
    text = f"{' and '.join(parts)} before this one are not shown; download the whole file above"
    return LogLine(source=source, text=text, css="sys", left_lines=lines, left_bytes=count_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilter:
    """What the reader wants to see; empty means everything."""

    stage: str = ""
    rank: int | None = None
    stream: str = ""
    """`messages`, `stdout`, `stderr`, or empty."""

    def wants(self, stage: str, rank: int, stream: str) -> bool:
        """Return whether a line from there is shown."""
        return self.stage in ("", stage) and (self.rank is None or self.rank == rank) and (self.stream in ("", stream))


@dataclass(slots=True, kw_only=True)
class LogCursor:
    """How far a reader has come."""

    event: int = 0
    offsets: dict[str, dict[str, int]] = field(default_factory=dict)
    """`<stage>/<attempt>` -> `<rank><o or e>` -> byte."""

    def encode(self) -> str:
        """Return the cursor as one opaque word."""
        plain = json.dumps([self.event, self.offsets], separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(zlib.compress(plain, 6)).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> "LogCursor":
        """Invert `encode`. Raises ValueError for anything else."""
        try:
            packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            inflater = zlib.decompressobj()
            event, offsets = json.loads(inflater.decompress(packed, 1 << 20))
            checked = {str(key): {str(name): _place(at) for name, at in row.items()} for key, row in offsets.items()}
            return cls(event=_place(event), offsets=checked)
        except (ValueError, TypeError, AttributeError, RecursionError, zlib.error) as error:
            raise ValueError(f"not a cursor of this page: {text[:40]!r}") from error

    def at(self, log: LogFile) -> int:
        """Return the next byte to read of a file."""
        return self.offsets.get(f"{log.stage}/{log.attempt}", {}).get(f"{log.rank}{log.stream[3]}", 0)

    def move(self, log: LogFile, offset: int) -> None:
        """Note that everything before `offset` was shown."""
        self.offsets.setdefault(f"{log.stage}/{log.attempt}", {})[f"{log.rank}{log.stream[3]}"] = offset


def _place(value: object) -> int:
    """Return a number of a cursor. Raises ValueError for what no cursor holds."""
    if type(value) is not int or not 0 <= value <= LARGEST_ID:
        raise ValueError(f"{value!r:.40} is no place")
    return value


def log_files(root: Path, stages: Sequence[Mapping[str, Any]], wanted: LogFilter) -> Iterator[LogFile]:
    """Yield the output files there are, by stage, attempt, rank and stream."""
    if wanted.stream == "messages":
        return
    paths = RunPaths(root)
    for stage in stages:
        if stage["attempt"] < 1 or wanted.stage not in ("", stage["name"]):
            continue
        attempt = paths.attempt(stage["name"], stage["attempt"])
        folder = attempt.log(0, STREAMS[0]).parent
        names = (FILE_NAME.match(path.name) for path in (folder.iterdir() if folder.is_dir() else ()))
        for rank, stream in sorted((int(match[1]), match[2]) for match in names if match):
            if wanted.wants(stage["name"], rank, stream):
                yield LogFile(
                    path=attempt.log(rank, stream),
                    stage=stage["name"],
                    attempt=stage["attempt"],
                    rank=rank,
                    stream="stdout" if stream == "stdout" else "stderr",
                    ended=stage["finished_at"] is not None,
                )


def tail(log: LogFile, cursor: LogCursor, *, most: int = MOST_LINES, countable: int = COUNT_BYTES) -> list[LogLine]:
    """Return the last lines of a file, at most `most`, and move the cursor behind them.

    What is left out before them stands in a note at their begin: its lines where they lie in `countable` bytes.
    """
    data, start, size = _read(log, None, TAIL_BYTES)
    cut = data.find(b"\n") + 1 if start > 0 else 0  # the first line is most likely cut
    lines = _take(log, cursor, data[cut:], start + cut, size, skipped=(0, start + cut), countable=countable)
    return newest(lines, most)


def newest(lines: list[LogLine], most: int) -> list[LogLine]:
    """Return the last `most` lines; those before them, and what their notes stand for, stand in one note."""
    real = sum(not line.is_note for line in lines)
    if real <= most:
        return lines
    kept = [line for line in lines if not line.is_note][-most:]
    notes = [line for line in lines if line.is_note]
    gone = real - most + sum(line.left_lines for line in notes)
    return [left_out(lines[0].source, gone, sum(line.left_bytes for line in notes)), *kept]


def more(log: LogFile, cursor: LogCursor) -> list[LogLine]:
    """Return the lines of a file after the cursor, a bounded number of bytes, and move the cursor behind them."""
    offset = cursor.at(log)
    data, start, size = _read(log, offset, STEP_BYTES)
    if size - offset <= BEHIND_BYTES:
        return _take(log, cursor, data, start, size)
    data, start, size = _read(log, None, TAIL_BYTES)
    cut = data.find(b"\n") + 1
    return _take(log, cursor, data[cut:], start + cut, size, skipped=(offset, start + cut))


def _skipped(log: LogFile, begin: int, end: int, countable: int) -> LogLine:
    """Return the note that stands for the bytes from `begin` to `end`, which is behind a line break."""
    source, lines, at = _source(log), 0, begin
    if end - begin > countable:
        return left_out(source, 0, end - begin)
    try:
        with log.path.open("rb") as handle:
            handle.seek(begin)
            while at < end and (piece := handle.read(min(COUNT_STEP, end - at))):
                lines += piece.count(b"\n")
                at += len(piece)
    except OSError:  # removed with its run a moment ago
        return left_out(source, 0, end - begin)
    return left_out(source, lines, 0 if lines else end - begin)


def _source(log: LogFile) -> str:
    return f"{log.stage}/{log.rank} {log.stream}"


def _read(log: LogFile, offset: int | None, limit: int) -> tuple[bytes, int, int]:
    """Return (bytes, where they start, size of the file); without an offset the last `limit` bytes."""
    try:
        with log.path.open("rb") as handle:
            size = handle.seek(0, os.SEEK_END)
            start = max(0, size - limit) if offset is None else min(offset, size)
            handle.seek(start)
            return handle.read(limit), start, size
    except OSError:  # not there yet, or removed with its run a moment ago
        return b"", offset or 0, offset or 0


def _take(
    log: LogFile,
    cursor: LogCursor,
    data: bytes,
    start: int,
    size: int,
    *,
    skipped: tuple[int, int] = (0, 0),
    countable: int = COUNT_BYTES,
) -> list[LogLine]:
    """Cut `data`, which starts at byte `start`, into whole lines; an unfinished last one stays for the next reading.

    The bytes between the two of `skipped` are not shown, and a note says so.
    """
    source = _source(log)
    whole, newline, rest = data.rpartition(b"\n")
    complete = log.ended and start + len(data) >= size
    if rest and (complete or len(rest) > LINE_CHARACTERS):
        whole, newline, rest = data, b"\n", b""
    cursor.move(log, start + len(data) - len(rest))
    if not newline:
        return []
    lines = []
    if skipped[1] > skipped[0]:
        lines.append(_skipped(log, *skipped, countable))
    css = "err" if log.stream == "stderr" else ""
    texts = whole.decode(errors="replace").split("\n")
    return lines + [LogLine(source=source, text=shown(text), css=css) for text in texts]


def event_line(event: Mapping[str, Any]) -> LogLine | None:
    """Return an event as a line of the log; None for events that are numbers (metrics, progress, sync)."""
    kind = event["type"]
    if kind not in TEXT_EVENTS:
        return None
    text = _event_text(kind, event)
    css = {"error": "err", "message": _level(event), "phase": "sys", "start": "sys", "end": "sys"}.get(kind, "")
    return LogLine(source=f"{event['stage']}/{event['rank']} {_clock(event)}", text=shown(text), css=css)


def _event_text(kind: str, event: Mapping[str, Any]) -> str:
    match kind:
        case "start":
            backend = event.get("backend")  # "none" where a stage is one process and talks to nobody
            over = f", {backend}" if backend != "none" else ""
            return f"started, pid {event.get('pid')} on {event.get('device')}{over}"
        case "error":
            return f"{event.get('error')}: {event.get('text')}"
        case "checkpoint":
            return f"checkpoint at step {event.get('step')}: {event.get('path')}"
        case "phase":
            return f"phase {event.get('phase')}, step {event.get('step')}"
        case "end":
            return "ended"
    return str(event.get("text", ""))


def _level(event: Mapping[str, Any]) -> str:
    level = str(event.get("level", ""))
    return "err" if level in ("error", "critical") else "warn" if level == "warning" else ""


def _clock(event: Mapping[str, Any]) -> str:
    at = event.get("t")
    if not isinstance(at, int | float):
        return ""
    return f"{int(at // 3600) % 24:02d}:{int(at // 60) % 60:02d}:{at % 60:06.3f}Z"
