"""Telemetry of a run: events, metrics, logs, and resource use."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from app.formats import exact
from app.runs.errors import refused
from app.runs.ordering import LARGEST_ID
from app.runs.store import get_run
from app.runs.telemetry.events import EVENTS_LIMIT, EventList, MalformedList, events, malformed_lines
from app.runs.telemetry.items import EventFilter
from app.runs.telemetry.logs import DEFAULT_LIMIT, LOG_LIMIT, LogFile, LogPiece, find_log, logs
from app.runs.telemetry.resources import ResourceList, resources
from app.runs.telemetry.series import (
    DEFAULT_POINTS,
    EVERY_STEP,
    FEWEST_POINTS,
    MAX_POINTS,
    MetricList,
    StepRange,
    metrics,
)
from app.web.api.answers import answers
from app.web.api.replies import AppSettings, ReadSession
from app.web.http.head import headers_alone, without_body
from trainer.contract.events import EVENT_FIELDS

router = APIRouter(prefix="/runs/{run_id}", tags=["telemetry"])

CHUNK: Final = 1 << 18
AFTER: Final = "Events with a higher number, with any filters: `next_after` of the previous page."
LARGEST_RANK: Final = 2**31 - 1
EventType = Literal["start", "phase", "progress", "metrics", "sync", "checkpoint", "message", "error", "end"]
assert set(EventType.__args__) == set(EVENT_FIELDS)  # type: ignore[attr-defined]  # noqa: S101
RankNumber = Annotated[int, Query(ge=0, le=LARGEST_RANK)]
StageName = Annotated[str, Query(max_length=64)]


@router.get("/events", responses=answers(404))
def list_events(
    *,
    run_id: int,
    session: ReadSession,
    after: Annotated[int, Query(ge=0, le=LARGEST_ID, description=AFTER)] = 0,
    stage: StageName | None = None,
    rank: RankNumber | None = None,
    type: EventType | None = None,  # noqa: A002  # the name in the URL
    limit: Annotated[int, Query(ge=1, le=EVENTS_LIMIT)] = 100,
) -> EventList:
    """List rank events in order; request the following ones with `after=next_after`."""
    get_run(session, run_id)
    wanted = EventFilter(stage=stage, rank=rank, type=type)
    return events(session, run_id, after=after, wanted=wanted, limit=limit)


@router.get("/malformed", responses=answers(404))
def list_malformed(
    run_id: int, session: ReadSession, limit: Annotated[int, Query(ge=1, le=EVENTS_LIMIT)] = 100
) -> MalformedList:
    """List malformed lines, which are not events, and the torn tails of ended attempts; they have no event ids."""
    get_run(session, run_id)
    return malformed_lines(session, run_id, limit)


@router.get("/metrics", responses=answers(404))
def list_metrics(
    *,
    run_id: int,
    session: ReadSession,
    key: Annotated[list[str] | None, Query(max_length=100)] = None,
    rank: RankNumber | None = None,
    max_points: Annotated[int, Query(ge=FEWEST_POINTS, le=MAX_POINTS)] = DEFAULT_POINTS,
    first: Annotated[float | None, Query(alias="from", allow_inf_nan=False, description="First step.")] = None,
    last: Annotated[float | None, Query(alias="to", allow_inf_nan=False, description="Last step.")] = None,
) -> MetricList:
    """Return metric series, down-sampled to `max_points`, keeping extremes and the first NaN of each section.

    `from` and `to` select a range of steps before down-sampling: request a short range to get every point.
    """
    get_run(session, run_id)
    steps = _steps(first, last)
    return metrics(session, run_id, keys=key or (), rank=rank, max_points=max_points, steps=steps)


def _steps(first: float | None, last: float | None) -> StepRange:
    low = EVERY_STEP[0] if first is None else first
    high = EVERY_STEP[1] if last is None else last
    if low > high:
        raise refused(
            "from", f"is {exact(low)}, which is greater than to = {exact(high)}; from must not be greater than to"
        )
    return EVERY_STEP if first is None and last is None else (low, high)


@router.get("/resources", responses=answers(404))
def list_resources(run_id: int, session: ReadSession) -> ResourceList:
    """Return CPU, memory and GPU use of every rank over time, with a bounded number of samples."""
    return resources(session, get_run(session, run_id))


@router.get("/logs/{rank}", response_model=LogPiece, responses=answers(404))
def read_log(
    *,
    request: Request,
    run_id: int,
    rank: int,
    session: ReadSession,
    settings: AppSettings,
    stage: StageName | None = None,
    attempt: Annotated[int | None, Query(ge=1, le=LARGEST_RANK)] = None,
    stream: Literal["stdout", "stderr"] = "stdout",
    offset: Annotated[int, Query(ge=-LARGEST_ID, le=LARGEST_ID)] = 0,
    limit: Annotated[int, Query(ge=1, le=LOG_LIMIT)] = DEFAULT_LIMIT,
    download: bool = False,
) -> LogPiece | Response:
    """Return a piece of a rank's output; `stage` and `attempt` default to the newest, a negative offset counts from the
    end, `download=1` streams the whole file.
    """
    get_run(session, run_id)
    rank = rank if 0 <= rank <= LARGEST_RANK else -1
    if not download:
        place = {"stage": stage, "attempt": attempt, "stream": stream}
        return logs(session, settings.runs_dir, run_id, rank, offset=offset, limit=limit, **place)
    log = find_log(session, settings.runs_dir, run_id, rank, stage=stage, attempt=attempt, stream=stream)
    answer = _download(log, f"run-{run_id}-{log.stage}-{log.attempt}-rank{log.rank}.{log.stream}.txt")
    return without_body(answer) if headers_alone(request) else answer


def _download(log: LogFile, filename: str) -> Response:
    # The length is fixed now: a rank that is still writing must not make the answer longer than announced.
    size = log.path.stat().st_size if log.path.is_file() else 0
    headers = {"Content-Length": str(size), "Content-Disposition": f'attachment; filename="{filename}"'}
    return StreamingResponse(_file(log.path, size), media_type="text/plain; charset=utf-8", headers=headers)


def _file(path: Path, size: int) -> Iterator[bytes]:
    if not size:
        return
    with path.open("rb") as handle:
        while size > 0 and (data := handle.read(min(CHUNK, size))):
            size -= len(data)
            yield data
