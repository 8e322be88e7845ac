"""Parts that every form of the web application shares: its state, and the REST API, which commands call in-process."""

from threading import BoundedSemaphore

from fastapi import APIRouter, FastAPI

from app.db import create_database_engine
from app.inference.choose import Chooser
from app.inference.client import Classifier
from app.settings import Settings
from app.status import WriteProbe
from app.web.api import (
    exports,
    files,
    kinds,
    operating,
    predict,
    runs,
    sharing,
    storage,
    stream,
    targets,
    telemetry,
    traces,
)
from app.web.http import problems
from app.web.security.access import Access
from app.web.security.guesses import Guesses
from app.web.security.sessions import Sessions
from app.web.status.numbers import Monitor
from app.web.streams import Live


def create_local_api(settings: Settings) -> FastAPI:
    """Return the REST API alone, for commands that call it inside their own process instead of over a socket."""
    app = FastAPI(openapi_url=None)
    fill_state(app, settings)
    problems.install(app, log_unavailable=False)  # the command reports it
    app.include_router(api_router())
    return app


def api_router() -> APIRouter:
    """Return every route of the REST API."""
    api = APIRouter(prefix=problems.BASE)
    # `exports` before `runs`: /runs/export must not be parsed as a run's number.
    for module in (
        exports,
        runs,
        traces,
        telemetry,
        stream,
        files,
        kinds,
        targets,
        predict,
        sharing,
        storage,
        operating,
    ):
        api.include_router(module.router)
    return api


def fill_state(app: FastAPI, settings: Settings) -> None:
    """Set what an application's routes read from `app.state`."""
    app.state.settings = settings
    app.state.engine = create_database_engine(settings)
    app.state.write_probe = WriteProbe(app.state.engine)
    app.state.live = Live(app.state.engine)
    app.state.monitor = Monitor(app.state.engine, settings, app.state.live)
    app.state.sessions = Sessions(settings, app.state.engine)
    app.state.access = Access(settings, app.state.sessions)
    app.state.guesses = Guesses()
    app.state.stopping = False
    app.state.few = BoundedSemaphore(2)
    app.state.chooser = Chooser(app.state.engine, settings.runs_dir)
    app.state.classifier = Classifier(max_pixels=settings.max_image_pixels, max_bytes=settings.max_upload_bytes)
