"""Whether the service is up, ready, and which version it is; numbers for Prometheus."""

from functools import cache
from importlib.metadata import version
from typing import Any, Final

from fastapi import APIRouter, Request
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from app.db import read_session, write_session
from app.keeping.disk import free_bytes
from app.runs.models import Meta, WorkerRow
from app.runs.queue import live_workers
from app.settings import Settings
from app.web.api.replies import reply
from app.web.problems import Problem

router = APIRouter(tags=["health"])

PROBE_KEY: Final = "readiness_probe"


@router.get("/healthz")
async def healthz() -> Response:
    """Say that the process is up; touches nothing."""
    return reply({"status": "up"})


@router.get("/readyz")
def readyz(request: Request) -> Response:
    """Say whether runs can be recorded and executed; 503 names what is missing."""
    engine: Engine = request.app.state.engine
    try:
        _write_something(engine)
        with read_session(engine) as session:
            workers = [_worker(row) for row in live_workers(session) if row.devices is not None]
    except SQLAlchemyError as error:
        detail = f"the database cannot be written: {str(error).splitlines()[0][:200]}"
        raise Problem(503, "database_unavailable", detail, extra={"workers": []}) from None
    if not workers:
        detail = "no worker with a fresh heartbeat that lists its devices: start `ddp-audit worker`, or wait for it"
        raise Problem(503, "no_worker", detail, extra={"workers": []}, headers={"Retry-After": "2"})
    _check_disk(request.app.state.settings, workers)
    return reply({"status": "ready", "workers": workers})


def _check_disk(settings: Settings, workers: list[dict[str, Any]]) -> None:
    for name, free in free_bytes(settings).items():
        if free < settings.min_free_bytes:
            detail = (
                f"the {name} directory has {free} bytes free, DDP_AUDIT_MIN_FREE_BYTES asks for "
                f"{settings.min_free_bytes}: `ddp-audit usage` and `ddp-audit retention` show what could go"
            )
            raise Problem(503, "disk_low", detail, extra={"workers": workers})


def _write_something(engine: Engine) -> None:
    with write_session(engine) as session:
        session.merge(Meta(key=PROBE_KEY, value="written"))


def _worker(row: WorkerRow) -> dict[str, Any]:
    return {"pid": row.pid, "host": row.host, "devices": row.devices, "kinds": row.kinds, "targets": row.targets}


@router.get("/version")
async def show_version() -> Response:
    """Give the product's version."""
    return reply({"name": "ddp-audit", "version": product_version(), "api": "v1"})


@cache
def product_version() -> str:
    """Return the installed version."""
    return version("ddp-audit")


@router.get("/metrics", response_class=Response)
def metrics(request: Request) -> Response:
    """Give counts and times in Prometheus' text format; never a run's number."""
    return Response(generate_latest(request.app.state.monitor.registry), media_type=CONTENT_TYPE_LATEST)
