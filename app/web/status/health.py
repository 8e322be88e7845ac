"""Whether the service is up, ready, and which version it is; numbers for Prometheus."""

from functools import cache
from importlib.metadata import version
from typing import Literal

from fastapi import APIRouter, Request
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import Field
from starlette.responses import Response

from app.clock import rfc3339
from app.documents import Document
from app.status import LiveWorker, readiness
from app.web.http.problems import Problem

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Report that the process is up; reads nothing else."""
    return {"status": "up"}


class Ready(Document):
    """Runs can be recorded and executed."""

    status: Literal["ready"] = "ready"
    workers: list[LiveWorker]
    checked_at: str = Field(description="Time of the last test write to the database; at most one in five seconds.")


class Version(Document):
    """Name and version of the product."""

    name: str
    version: str
    api: str


@router.get("/readyz")
def readyz(request: Request) -> Ready:
    """Report whether runs can be recorded and executed; 503 names what is missing.

    A test write to the database is made at most once in five seconds; `checked_at` is its time.
    """
    state = request.app.state
    found = readiness(state.engine, state.settings, state.write_probe)
    ready = Ready(workers=found.workers, checked_at=rfc3339(found.checked_at))
    if found.shortfalls:
        gravest = found.shortfalls[0]
        headers = {"Retry-After": "2"} if gravest.code == "no_worker" else None
        extra = ready.model_dump(exclude={"status"})
        raise Problem(503, gravest.code, gravest.detail, extra=extra, headers=headers)
    return ready


@router.get("/version")
async def show_version() -> Version:
    """Return the product's version."""
    return Version(name="ddp-audit", version=product_version(), api="v1")


@cache
def product_version() -> str:
    """Return the installed version."""
    return version("ddp-audit")


@router.get("/metrics", response_class=Response)
def metrics(request: Request) -> Response:
    """Return counts and times in Prometheus' text format; never a run's number."""
    return Response(generate_latest(request.app.state.monitor.registry), media_type=CONTENT_TYPE_LATEST)
