"""Lines of the log on the page of a run: timed messages, and pieces of captured output."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.runs.telemetry.items import STREAMS, OutputFilter
from app.runs.telemetry.logs import LogFile, count_lines, log_at
from app.web.runlog.terminal import shown

COUNT_BYTES: Final = 8_000_000
"""Maximum skipped bytes that are read to count their lines."""
TEXT_EVENTS: Final = frozenset({"start", "message", "error", "checkpoint", "phase", "end"})


MOST_PRINTING: Final = 32
"""Without a chosen rank, the output of ranks from this number on is not shown: it could be that of thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of the log."""

    source: str
    text: str
    css: str = ""
    left_lines: int = 0
    """Number of lines that this note represents; 0 for a line of the log."""
    left_bytes: int = 0
    """Bytes that it represents whose lines were not counted."""

    @property
    def is_note(self) -> bool:
        """Whether it is a note about lines that are not shown."""
        return bool(self.left_lines or self.left_bytes)


def left_out(source: str, lines: int, count_bytes: int = 0) -> LogLine:
    """Return the note that represents lines, and bytes whose lines were not counted."""
    parts = [f"{lines:,} lines"] if lines else []
    parts += [f"{count_bytes:,} bytes"] if count_bytes else []
    text = f"{' and '.join(parts)} before this one are not shown; download the whole file above"
    return LogLine(source=source, text=text, css="sys", left_lines=lines, left_bytes=count_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilter:
    """The reader's filter; empty means everything."""

    stage: str = ""
    rank: int | None = None
    stream: str = ""
    """`messages`, `stdout`, `stderr`, or empty."""

    def wants(self, stage: str, rank: int, stream: str) -> bool:
        """Return whether a line of this source is shown."""
        chosen = self.rank == rank if self.rank is not None else stream not in STREAMS or rank < MOST_PRINTING
        return self.stage in ("", stage) and chosen and self.stream in ("", stream)

    def output(self) -> OutputFilter | None:
        """Return the selected output, None for no output; only complete lines are shown."""
        if self.stream == "messages":
            return None
        streams = tuple(stream for stream in STREAMS if self.stream in ("", stream))
        return OutputFilter(
            stage=self.stage or None, rank=self.rank, streams=streams, whole_lines=True, most=MOST_PRINTING
        )


def newest(lines: list[LogLine], most: int) -> list[LogLine]:
    """Return the last `most` lines; earlier lines and notes are merged into one note."""
    real = sum(not line.is_note for line in lines)
    if real <= most:
        return lines
    kept = [line for line in lines if not line.is_note][-most:]
    notes = [line for line in lines if line.is_note]
    gone = real - most + sum(line.left_lines for line in notes)
    return [left_out(lines[0].source, gone, sum(line.left_bytes for line in notes)), *kept]


def output_lines(root: Path, piece: Mapping[str, Any]) -> list[LogLine]:
    """Return a `log` item of the run with folder `root` as lines, after a note about skipped output."""
    log = log_at(root, piece["stage"], piece["attempt"], piece["rank"], piece["stream"])
    skipped = piece.get("skipped", 0)
    notes = [skipped_note(log, piece["offset"] - skipped, piece["offset"])] if skipped else []
    return notes + text_lines(log, piece["text"])


def text_lines(log: LogFile, text: str) -> list[LogLine]:
    """Return captured output as lines; a line break at its end does not begin another line."""
    css = "err" if log.stream == "stderr" else ""
    texts = text.removesuffix("\n").split("\n") if text else []
    return [LogLine(source=_source(log), text=shown(line), css=css) for line in texts]


def skipped_note(log: LogFile, begin: int, end: int, countable: int = COUNT_BYTES) -> LogLine:
    """Return the note that represents the bytes from `begin` to `end`, which is after a line break."""
    lines = count_lines(log, begin, end) if end - begin <= countable else 0
    return left_out(_source(log), lines, 0 if lines else end - begin)


def _source(log: LogFile) -> str:
    return f"{log.stage}/{log.rank} {log.stream}"


def event_line(event: Mapping[str, Any]) -> LogLine | None:
    """Return an event as a line of the log; None for numeric events (metrics, progress, sync)."""
    kind = event["type"]
    if kind not in TEXT_EVENTS:
        return None
    text = _event_text(kind, event)
    css = {"error": "err", "message": _level(event), "phase": "sys", "start": "sys", "end": "sys"}.get(kind, "")
    return LogLine(source=f"{event['stage']}/{event['rank']} {_clock(event)}", text=shown(text), css=css)


def _event_text(kind: str, event: Mapping[str, Any]) -> str:
    match kind:
        case "start":
            backend = event.get("backend")  # "none" for a stage that is a single process
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
