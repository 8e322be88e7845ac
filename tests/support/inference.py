"""A service that only classifies: real routes, real database, real child; and the rows and model files it needs."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch
import uvicorn
from fastapi import FastAPI

from app.clock import now
from app.db import create_database_engine, write_session
from app.inference.choose import Chooser, model_path
from app.inference.client import Classifier
from app.runs.models import Run
from app.schema import migrate
from app.settings import Settings
from app.web.api import predict
from app.web.http import problems
from trainer.common.model_file import save_model
from trainer.kinds.cifar.train.model import CifarNet

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def network(seed: int = 0, classes: int = len(CLASSES)) -> CifarNet:
    """Return a network whose BatchNorm has seen data and whose outputs are far from uniform."""
    torch.manual_seed(seed)
    net = CifarNet(classes)
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(16, 3, 32, 32) * 2 + 1)
        net.head.weight.mul_(60)
    return net.eval()


def service(settings: Settings, **options: Any) -> FastAPI:
    """Return an application with only the classification routes."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await app.state.classifier.close()
        app.state.chooser.close()
        app.state.engine.dispose()

    migrate(settings)
    app = FastAPI(lifespan=lifespan)
    app.state.settings = settings
    app.state.engine = create_database_engine(settings)
    app.state.chooser = Chooser(app.state.engine, settings.runs_dir)
    app.state.classifier = Classifier(
        max_pixels=settings.max_image_pixels, max_bytes=settings.max_upload_bytes, **options
    )
    problems.install(app)
    app.include_router(predict.router, prefix=problems.BASE)
    return app


def add_run(
    app: FastAPI, *, seed: int | None = 0, modes: Sequence[str] = ("no_sync",), mode: str = "no_sync", **fields: Any
) -> int:
    """Record a passing cifar run and save its models (one per mode, seeds ascending; none without `seed`)."""
    row = {"kind": "cifar", "state": "succeeded", "reason": "completed", "verdict": "pass", **fields}
    with write_session(app.state.engine) as session:
        run = Run(params={"mode": mode}, created_at=now(), **row)
        session.add(run)
        session.flush()
        number = int(run.id or 0)
    for offset, trained in enumerate(modes if seed is not None else ()):
        path = model_path(app.state.settings.runs_dir, number, "cifar", {"mode": trained})
        path.parent.mkdir(parents=True)
        save_model(path, network(int(seed or 0) + offset), classes=CLASSES, seed=47)
    return number


@contextmanager
def served(app: FastAPI) -> Iterator[httpx.Client]:
    """Serve `app` on a free port of this machine and yield a client of it."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the service did not start"
        time.sleep(0.01)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


async def until_gone(pid: int, seconds: float = 10.0) -> bool:
    """Return whether the process ends in time."""
    for _ in range(int(seconds / 0.05)):
        if not Path(f"/proc/{pid}").exists() or b") Z " in Path(f"/proc/{pid}/stat").read_bytes():
            return True
        await asyncio.sleep(0.05)
    return False
