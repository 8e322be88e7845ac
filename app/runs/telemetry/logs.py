"""Reading what ranks printed: bounded pieces of their captured output, from any byte on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from sqlmodel import Session, col, select

from app.runs.errors import NotFound
from app.runs.models import RankRow, StageAttempt
from trainer.contract.paths import RunPaths

Stream = Literal["stdout", "stderr"]
STREAMS: Final[tuple[Stream, ...]] = ("stdout", "stderr")
LOG_LIMIT: Final = 1 << 20
DEFAULT_LIMIT: Final = 1 << 16
LONGEST_CHARACTER: Final = 4
"""Bytes of the longest UTF-8 character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """Captured output of one rank of one attempt."""

    path: Path
    stage: str
    attempt: int
    rank: int
    stream: Stream
    ended: bool
    """Whether the attempt is over: the file grows no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Part of a log file."""

    text: str
    offset: int
    """Byte the text starts at."""
    next_offset: int
    """Byte after it: ask for this one next."""
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
    """Return the log of a rank, by default of the newest attempt that has this rank. Raises NotFound."""
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
    if found is None:
        place = "" if stage is None else f" in stage {stage}" + ("" if attempt is None else f" attempt {attempt}")
        raise NotFound("unknown_rank", f"run {run_id} has no rank {rank}{place}, or it has not started yet")
    return log_file(runs_dir, found[0], found[1], stream)


def log_file(runs_dir: Path, rank: RankRow, attempt: StageAttempt, stream: Stream) -> LogFile:
    """Return where the output of `rank` is kept."""
    paths = RunPaths(runs_dir / str(rank.run_id)).attempt(rank.stage, rank.attempt)
    return LogFile(
        path=paths.log(rank.rank, stream),
        stage=rank.stage,
        attempt=rank.attempt,
        rank=rank.rank,
        stream=stream,
        ended=attempt.finished_at is not None,
    )


def read_piece(log: LogFile, offset: int = 0, limit: int = DEFAULT_LIMIT) -> Piece:
    """Return at most `limit` bytes of text from byte `offset` on; a negative offset counts from the end.

    A character that is cut in two at the end of the piece is left for the next one, unless the file grows no more.
    A file that does not exist yet is empty.
    """
    try:
        with log.path.open("rb") as handle:
            size = handle.seek(0, 2)
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            handle.seek(start)
            data = handle.read(min(limit, LOG_LIMIT))
    except (FileNotFoundError, NotADirectoryError):
        return Piece(text="", offset=0, next_offset=0, size=0)
    if not (log.ended and start + len(data) >= size):
        whole = data[: len(data) - _torn_tail(data)]
        data = data if not whole and limit < LONGEST_CHARACTER else whole  # a tiny piece must still get on
    return Piece(text=data.decode(errors="replace"), offset=start, next_offset=start + len(data), size=size)


def _torn_tail(data: bytes) -> int:
    """Return how many bytes at the end are the begin of an unfinished UTF-8 character (0 to 3)."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if needed > back else 0
    return 0


def logs(
    session: Session,
    runs_dir: Path,
    run_id: int,
    rank: int,
    *,
    offset: int = 0,
    limit: int = DEFAULT_LIMIT,
    **place: Any,
) -> dict[str, Any]:
    """Return a piece of a rank's output with the next offset; `place` is stage, attempt and stream. Raises NotFound."""
    log = find_log(session, runs_dir, run_id, rank, **place)
    piece = read_piece(log, offset, limit)
    return {
        "run_id": run_id,
        "stage": log.stage,
        "attempt": log.attempt,
        "rank": log.rank,
        "stream": log.stream,
        "offset": piece.offset,
        "next_offset": piece.next_offset,
        "size": piece.size,
        "ended": log.ended,
        "text": piece.text,
    }
