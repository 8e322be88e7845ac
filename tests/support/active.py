"""A run that a worker is responsible for, without the worker."""

from typing import Final

from sqlalchemy import Engine

from app.db import write_session
from app.host.processes import Identity
from app.runs import queue
from app.runs.states import State
from worker.claim import Me

ME: Final = Me(id="me", process=Identity(pid=1, start=1, boot="b"))


def running(engine: Engine) -> int:
    """Record a run that ME has started and return its number."""
    with write_session(engine) as session:
        run_id = queue.number_of(queue.insert_run(session, kind="token-parity", params={}, worker_id=ME.id))
        queue.move(session, run_id, State.QUEUED, State.STARTING, actor=ME.id)
        queue.move(session, run_id, State.STARTING, State.RUNNING, actor=ME.id)
    return run_id
