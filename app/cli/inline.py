"""Executing a run inside the command that recorded it, if there is no live worker."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from app.cli.client import Client, local_settings, names_service
from app.cli.exits import CommandError, Exit, of_database
from app.runs.states import FINAL
from app.settings import LOCAL

if TYPE_CHECKING:
    from worker.executors.local.warm import Starter


@contextmanager
def warming_up() -> Iterator["Starter | None"]:
    """Let another process import torch while this one imports its modules: each takes seconds.

    Yields None if this command will start no process itself. Raises CommandError for invalid settings.
    """
    settings = None if names_service() else local_settings()
    if settings is None or settings.executor != LOCAL:
        yield None
        return
    from worker.executors.local.warm import Starter, inherited

    starter = Starter(inherited(os.environ), warm=settings.warm_start)
    try:
        starter.warming()
        yield starter
    finally:
        starter.close()


@contextmanager
def executing(client: Client, run_id: int, starter: "Starter | None" = None) -> Iterator[Callable[[], None]]:
    """Execute the run in a thread unless a service or a live worker does it, which needs no `starter`.

    Yields a function that raises CommandError if no process is left that could finish the run.
    """
    if client.remote or _worker_lives(client):
        if starter is not None:
            starter.close()
        yield lambda: None
        return
    from worker.executors.choose import make_executor
    from worker.loop import Worker

    failures: list[BaseException] = []

    def execute() -> None:
        try:
            settings = client.settings
            Worker(settings, executor=make_executor(settings, starter)).run_single(run_id)
        except BaseException as error:  # reported by the waiting thread
            failures.append(error)

    thread = threading.Thread(target=execute, name="worker", daemon=True)

    def check() -> None:
        if thread.is_alive() or (not failures and _worker_lives(client)):
            return
        # Looked at after the thread: the run may have ended since the caller last read it.
        if client.get(f"/runs/{run_id}")["state"] not in FINAL:
            failure = failures[0] if failures else None
            why = "" if failure is None else f": {of_database(failure) or f'{type(failure).__name__}: {failure}'}"
            raise CommandError(Exit.FAILED, f"the worker of run {run_id} stopped before the run ended{why}")

    thread.start()
    yield check
    thread.join(timeout=30)


def _worker_lives(client: Client) -> bool:
    from app.db import read_session
    from app.runs.workers import live_workers

    with read_session(client.engine) as session:
        return bool(live_workers(session))
