"""Builds the web application: the only place that wires its parts together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import BoundedSemaphore
from typing import Final

from fastapi import APIRouter, FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from app.db import create_database_engine
from app.inference.choose import Chooser
from app.inference.client import Classifier
from app.runs.removal import finish_deletions
from app.settings import Settings
from app.sharing.dispatcher import Dispatcher
from app.web.api import auditlog, exports, files, kinds, predict, runs, sharing, status, storage, stream, telemetry
from app.web.http import docs, problems
from app.web.http.head import HeadAsGet
from app.web.http.prefix import Prefixed
from app.web.http.requestlog import RequestLog
from app.web.security import login
from app.web.security.access import Access
from app.web.security.guard import Guard
from app.web.security.sessions import Sessions
from app.web.status import health
from app.web.status.numbers import Measured, Monitor
from app.web.streams import Live

STATIC: Final = Path(__file__).resolve().parent / "static"
DESCRIPTION: Final = "Runs multi-rank training jobs and gives a numeric verdict on what distribution changed."


def create_app(settings: Settings) -> FastAPI:
    """Return the application for a database that is at the newest schema. Starts nothing before its first request."""
    app = docs.Described(
        title="ddp-audit",
        version=health.product_version(),
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        openapi_tags=[dict(tag) for tag in docs.TAGS],
    )
    from app.web.pages.errors import render_problem
    from app.web.pages.routes import router as pages

    _fill_state(app, settings)
    problems.install(app)
    app.state.error_page = render_problem
    for router in (_api(), health.router, docs.router, login.router, pages):
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=STATIC, check_dir=False), name="static")
    app.add_route("/favicon.ico", favicon, include_in_schema=False)
    # The last one added is the outermost.
    app.add_middleware(HeadAsGet)
    app.add_middleware(Guard, settings=settings, access=app.state.access)
    app.add_middleware(Measured, monitor=app.state.monitor)
    app.add_middleware(RequestLog)
    if settings.root_path:
        app.add_middleware(Prefixed, prefix=settings.root_path)
    if settings.trusted_proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(settings.trusted_proxies))
    return app


async def favicon(_request: Request) -> Response:
    """Give the icon that a browser asks for beside files which name none, such as a picture in a tab of its own."""
    return FileResponse(STATIC / "icon.svg", headers={"Cache-Control": "max-age=86400"})


def create_local_api(settings: Settings) -> FastAPI:
    """Return the REST API alone, for commands that call it inside their own process instead of over a socket."""
    app = FastAPI(openapi_url=None)
    _fill_state(app, settings)
    problems.install(app)
    app.include_router(_api())
    return app


def _api() -> APIRouter:
    api = APIRouter(prefix=problems.BASE)
    # `exports` before `runs`: /runs/export is no number of a run.
    for module in (exports, runs, telemetry, stream, files, kinds, predict, sharing, storage, auditlog, status):
        api.include_router(module.router)
    return api


def _fill_state(app: FastAPI, settings: Settings) -> None:
    app.state.settings = settings
    app.state.engine = create_database_engine(settings)
    app.state.live = Live(app.state.engine)
    app.state.monitor = Monitor(app.state.engine, settings, app.state.live)
    app.state.sessions = Sessions(settings)
    app.state.access = Access(settings, app.state.sessions)
    app.state.guesses = login.Guesses()
    app.state.stopping = False
    app.state.few = BoundedSemaphore(2)
    app.state.chooser = Chooser(app.state.engine, settings.runs_dir)
    app.state.classifier = Classifier(max_pixels=settings.max_image_pixels, max_bytes=settings.max_upload_bytes)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    await run_in_threadpool(finish_deletions, app.state.engine, app.state.settings)
    dispatcher = Dispatcher(app.state.engine, app.state.settings)
    dispatcher.start()
    yield
    stop_streams(app)
    await run_in_threadpool(dispatcher.stop)
    await app.state.classifier.close()
    app.state.chooser.close()
    app.state.engine.dispose()


def stop_streams(app: FastAPI) -> None:
    """End every open stream; their clients come back to the next start."""
    app.state.stopping = True
    app.state.live.close()
