"""Builds the web application from the REST API, the pages and the middleware around them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from app.assembly import api_router, fill_state
from app.places import STATIC
from app.runs.removal import finish_deletions
from app.runs.targets import catalogue
from app.settings import Settings
from app.sharing.dispatcher import Dispatcher
from app.web.http import docs, problems
from app.web.http.head import HeadAsGet
from app.web.http.prefix import Prefixed
from app.web.http.requestlog import RequestLog
from app.web.security.guard import Guard
from app.web.status import health
from app.web.status.numbers import Measured

DESCRIPTION: Final = "Runs multi-rank training jobs and gives a numeric verdict on what distribution changed."


def create_app(settings: Settings) -> FastAPI:
    """Return the application for a database at the newest schema. Starts nothing before its first request."""
    app = docs.Described(
        title="ddp-audit",
        version=health.product_version(),
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        openapi_tags=[dict(tag) for tag in docs.TAGS],
    )
    from app.web.pages.routes import router as pages
    from app.web.views.rendering import problem_page

    fill_state(app, settings)
    problems.install(app)
    app.state.error_page = problem_page
    for router in (api_router(), health.router, docs.router, pages):
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=STATIC, check_dir=False), name="static")
    app.add_route("/favicon.ico", favicon, include_in_schema=False)
    # The middleware added last is the outermost.
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
    """Return the icon that browsers request for files that do not name one, such as a picture in its own tab."""
    return FileResponse(STATIC / "icon.svg", headers={"Cache-Control": "max-age=86400"})


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    await run_in_threadpool(finish_deletions, app.state.engine, app.state.settings)
    catalogue(app.state.settings).entries(patience=0.0)  # starts a listing if the operator registered targets
    dispatcher = Dispatcher(app.state.engine, app.state.settings)
    dispatcher.start()
    yield
    stop_streams(app)
    await run_in_threadpool(dispatcher.stop)
    await app.state.classifier.close()
    app.state.chooser.close()
    app.state.engine.dispose()


def stop_streams(app: FastAPI) -> None:
    """End every open stream; clients reconnect after the next start."""
    app.state.stopping = True
    app.state.live.close()
