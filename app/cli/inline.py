"""Executing a run inside the command that recorded it, if there is no live worker."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.cli.client import Client
from app.cli.exits import CommandError, Exit, of_database


@contextmanager
def executing(client: Client, run_id: int) -> Iterator[Callable[[], None]]:
    """Execute the run in a thread unless a service or a live worker does it.

    Yields a function that raises CommandError if no process is left that could finish the run.
    """
    if client.remote or _worker_lives(client):
        yield lambda: None
        return
    from worker.loop import Worker

    failures: list[BaseException] = []

    def execute() -> None:
        try:
            Worker(client.settings).run_single(run_id)
        except BaseException as error:  # reported by the waiting thread
            failures.append(error)

    thread = threading.Thread(target=execute, name="worker", daemon=True)

    def check() -> None:
        if not thread.is_alive() and (failures or not _worker_lives(client)):
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
