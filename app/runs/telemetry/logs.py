"""Reading the captured output of ranks: bounded pieces, from any byte on."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import Field
from sqlmodel import Session, col, select

from app.documents import Document
from app.runs.errors import NotFound
from app.runs.models import RankRow, StageAttempt
from app.runs.telemetry.cursor import MOST_RANKS
from app.runs.telemetry.items import STREAMS, Stream
from trainer.contract.paths import RunPaths

LOG_LIMIT: Final = 1 << 20
DEFAULT_LIMIT: Final = 1 << 16
LONGEST_CHARACTER: Final = 4
"""Bytes of the longest UTF-8 character."""
LONGEST_LINE: Final = 4_000
"""Maximum bytes of an unfinished line that is held back; a longer one is returned in pieces."""
COUNT_STEP: Final = 1 << 20
FILE_NAME: Final = re.compile(r"^rank(\d{1,6})\.(stdout|stderr)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """Captured output of one rank of one attempt."""

    path: Path
    stage: str
    attempt: int
    rank: int
    stream: Stream
    ended: bool
    """Whether the attempt is over and the file no longer grows."""


class LogPiece(Document):
    """Part of a rank's output."""

    run_id: int
    stage: str
    attempt: int
    rank: int
    stream: str
    offset: int = Field(description="Byte the text starts at.")
    next_offset: int = Field(description="Value of `offset` for the next request.")
    size: int = Field(description="Bytes in the file.")
    ended: bool = Field(description="Whether the file no longer grows.")
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Part of a log file."""

    text: str
    offset: int
    """Byte the text starts at."""
    next_offset: int
    """Offset of the next byte to request."""
    size: int
    """Bytes in the file when it was read."""


def find_log(
    session: Session,
    runs_dir: Path,
    run_id: int,
    rank: int,
    *,
    stage: str | None = None,
    attempt: int | None = None,
    stream: Stream = "stdout",
) -> LogFile:
    """Return the log of a rank, by default from the newest attempt with this rank. Raises NotFound."""
    query = (
        select(RankRow, StageAttempt)
        .join(
            StageAttempt,
            (col(StageAttempt.run_id) == col(RankRow.run_id))
            & (col(StageAttempt.stage) == col(RankRow.stage))
            & (col(StageAttempt.attempt) == col(RankRow.attempt)),
        )
        .where(RankRow.run_id == run_id, RankRow.rank == rank)
    )
    if stage is not None:
        query = query.where(RankRow.stage == stage)
    if attempt is not None:
        query = query.where(RankRow.attempt == attempt)
    newest = query.order_by(col(StageAttempt.position).desc(), col(StageAttempt.attempt).desc()).limit(1)
    found = session.exec(newest).first()
    wanted: dict[str, Any] = {"stage": stage, "attempt": attempt, "stream": stream}
    unnamed = _log_without_rank(session, runs_dir, run_id, rank, **wanted) if found is None else None
    if unnamed is not None:
        return unnamed
    if found is None:
        place = "" if stage is None else f" in stage {stage}" + ("" if attempt is None else f" attempt {attempt}")
        raise NotFound("unknown_rank", f"run {run_id} has no rank {rank}{place}, or it has not started yet")
    row, ended = found[0], found[1].finished_at is not None
    return log_at(runs_dir / str(run_id), row.stage, row.attempt, rank, stream, ended=ended)


def _log_without_rank(
    session: Session,
    runs_dir: Path,
    run_id: int,
    rank: int,
    *,
    stage: str | None,
    attempt: int | None,
    stream: Stream,
) -> LogFile | None:
    """Return the output of a program that never started the rank it is kept under; None where there is none."""
    query = select(StageAttempt).where(StageAttempt.run_id == run_id, StageAttempt.attempt > 0)
    for row in session.exec(query.order_by(col(StageAttempt.position).desc(), col(StageAttempt.attempt).desc())):
        log = log_at(runs_dir / str(run_id), row.stage, row.attempt, rank, stream, ended=row.finished_at is not None)
        if stage in {None, row.stage} and attempt in {None, row.attempt} and log.path.is_file():
            return log
    return None


def log_at(root: Path, stage: str, attempt: int, rank: int, stream: Stream, *, ended: bool = False) -> LogFile:
    """Return the path of a rank's output; `root` is the run's folder."""
    path = RunPaths(root).attempt(stage, attempt).log(rank, stream)
    return LogFile(path=path, stage=stage, attempt=attempt, rank=rank, stream=stream, ended=ended)


def attempt_logs(root: Path, stage: str, attempt: int, *, ended: bool = False) -> list[LogFile]:
    """Return the current output files of an attempt, by rank and stream; `root` is the run's folder."""
    folder = RunPaths(root).attempt(stage, attempt).log(0, STREAMS[0]).parent
    try:
        matches = [match for path in folder.iterdir() if (match := FILE_NAME.match(path.name))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    there = {(int(match[1]), match[2]) for match in matches}
    ranks = sorted({rank for rank, _stream in there if rank < MOST_RANKS})
    places = [(rank, stream) for rank in ranks for stream in STREAMS if (rank, stream) in there]
    return [log_at(root, stage, attempt, rank, stream, ended=ended) for rank, stream in places]


def read_piece(
    log: LogFile,
    offset: int = 0,
    limit: int = DEFAULT_LIMIT,
    *,
    whole_lines: bool = False,
    from_line: bool = False,
) -> Piece:
    """Return at most `limit` bytes of text from byte `offset` on; a negative offset counts from the end.

    A character that is cut at the end of the piece is left for the next piece, unless the file no longer grows; with
    `whole_lines` an unfinished line is left too, up to `LONGEST_LINE`. With `from_line` the piece begins after its
    first line break, if it has one. A file that does not exist is empty.
    """
    try:
        with log.path.open("rb") as handle:
            size = handle.seek(0, 2)
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            handle.seek(start)
            data = handle.read(min(limit, LOG_LIMIT))
    except (FileNotFoundError, NotADirectoryError):
        return Piece(text="", offset=0, next_offset=0, size=0)
    if from_line and start:
        cut = data.find(b"\n") + 1
        start, data = start + cut, data[cut:]
    if not (log.ended and start + len(data) >= size):
        data = _finished(data, limit, whole_lines=whole_lines)
    return Piece(text=data.decode(errors="replace"), offset=start, next_offset=start + len(data), size=size)


def _finished(data: bytes, limit: int, *, whole_lines: bool) -> bytes:
    """Return the largest prefix of `data` that cuts no character or line."""
    lines = data[: data.rfind(b"\n") + 1]
    if whole_lines and (lines or len(data) <= LONGEST_LINE):
        return lines
    whole = data[: len(data) - _torn_tail(data)]
    return data if not whole and limit < LONGEST_CHARACTER else whole  # even a tiny piece must make progress


def _torn_tail(data: bytes) -> int:
    """Return how many bytes at the end belong to an unfinished UTF-8 character (0 to 3)."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if needed > back else 0
    return 0


def count_lines(log: LogFile, begin: int, end: int) -> int:
    """Return the number of line breaks between two offsets of a file; 0 for a file that is gone."""
    return sum(piece.count(b"\n") for piece in _bytes_between(log, begin, end))


def _bytes_between(log: LogFile, begin: int, end: int) -> Iterator[bytes]:
    try:
        with log.path.open("rb") as handle:
            handle.seek(begin)
            while begin < end and (piece := handle.read(min(COUNT_STEP, end - begin))):
                begin += len(piece)
                yield piece
    except OSError:  # removed with its run a moment ago
        return


def logs(
    session: Session,
    runs_dir: Path,
    run_id: int,
    rank: int,
    *,
    offset: int = 0,
    limit: int = DEFAULT_LIMIT,
    **place: Any,
) -> LogPiece:
    """Return a piece of a rank's output with the next offset; `place` is stage, attempt and stream. Raises NotFound."""
    log = find_log(session, runs_dir, run_id, rank, **place)
    piece = read_piece(log, offset, limit)
    return LogPiece(
        run_id=run_id,
        stage=log.stage,
        attempt=log.attempt,
        rank=log.rank,
        stream=log.stream,
        offset=piece.offset,
        next_offset=piece.next_offset,
        size=piece.size,
        ended=log.ended,
        text=piece.text,
    )
