"""Databases, files of many ranks and workers without attempts, for the benchmark of scaling."""

import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Engine

from app.db import create_database_engine, write_session
from app.host.processes import own_process
from app.runs import queue
from app.runs.models import StageAttempt
from app.runs.states import Reason, State
from app.schema import migrate
from app.settings import Settings
from tests.support.postgres import Server
from trainer.contract.kinds import StagePlan, kinds, resolve_params
from trainer.contract.paths import AttemptPaths, RunPaths
from trainer.contract.placement import Offer
from worker import claim, records
from worker.claim import Machine, Me
from worker.facts import Facts
from worker.intake import Intake
from worker.outcome import Outcome

STAGE = StagePlan(name="train", title="Train", entry="none", launcher="torchrun")
DONE = Outcome(state=State.SUCCEEDED, reason=Reason.COMPLETED, failure=None, diagnosis="")
HEARTBEAT_SECONDS = 3.0


@contextmanager
def database(name: str, server: Server) -> Iterator[Settings]:
    """Yield settings of a new database: `sqlite`, or one on the server."""
    with tempfile.TemporaryDirectory(prefix="ddp-audit-scaling-") as folder:
        url = server.url(server.fresh()) if name == "postgres" else ""
        settings = Settings(data_dir=Path(folder), database_url=url)
        migrate(settings)
        yield settings


def pin(core: int) -> None:
    """Run this process on one core."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})


def active_run(engine: Engine, settings: Settings) -> tuple[int, AttemptPaths]:
    """Record a run with a running attempt that belongs to the worker `bench`; return its number and its paths."""
    with write_session(engine) as session:
        run_id = queue.number_of(queue.insert_run(session, kind="token-parity", params={}, worker_id="bench"))
        session.add(StageAttempt(run_id=run_id, stage="train", attempt=1, position=0, state="running"))
    paths = RunPaths(settings.runs_dir / str(run_id)).attempt("train", 1)
    paths.root.mkdir(parents=True)
    return run_id, paths


def line(number: int, metrics: int) -> bytes:
    """Return an event line as a rank writes it."""
    values = {f"metric_{index}": number * 0.001 + index + 1 / 3 for index in range(metrics)}
    event = {"seq": number, "t": round(time.time(), 3), "type": "metrics", "step": number, "values": values}
    return orjson.dumps(event) + b"\n"


def write_files(paths: AttemptPaths, ranks: int, events: int, metrics: int) -> None:
    """Write `events` events for each of `ranks` ranks."""
    data = b"".join(line(number, metrics) for number in range(events))
    for rank in range(ranks):
        paths.events(rank).write_bytes(data)


def keep_writing(paths: AttemptPaths, ranks: int, rate: float, seconds: float, *, core: int) -> None:
    """Append an event of two metrics to the file of every rank `rate` times a second, in turn; fills a process."""
    pin(core)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    handles = [paths.events(rank).open("ab", buffering=0) for rank in range(ranks)]
    began = time.perf_counter()
    for number in range(round(rate * seconds)):
        for rank, handle in enumerate(handles):
            handle.write(line(number, 2))
            ahead = began + (number + rank / ranks) / rate - time.perf_counter()
            if ahead > 0.002:
                time.sleep(ahead)
    for handle in handles:
        handle.close()


def fill_queue(settings: Settings, runs: int) -> None:
    """Queue runs."""
    params = resolve_params(kinds()["token-parity"], "quick", {"device": "cpu"}).model_dump(mode="json")
    engine = create_database_engine(settings)
    with write_session(engine) as session:
        for _ in range(runs):
            queue.insert_run(session, kind="token-parity", params=params)
    engine.dispose()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What each worker does with a run: events of its two ranks."""

    events: int
    metrics: int = 2


def work_off(settings: Settings, work: Work, workers: int) -> float:
    """Let `workers` processes work off the queue, and return the seconds that took."""
    context = get_context("spawn")
    ready, go = context.Semaphore(0), context.Event()
    processes = [
        context.Process(target=_worker, args=(settings.model_dump(), work, ready, go, 2 * workers))
        for _ in range(workers)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    began = time.perf_counter()
    go.set()
    for process in processes:
        process.join()
        if process.exitcode:
            raise SystemExit("a worker failed")
    return time.perf_counter() - began


def _worker(values: dict[str, Any], work: Work, ready: Any, go: Any, limit: int) -> None:
    """Do everything with the database that a worker does, and start no attempt."""
    settings = Settings(**values)
    engine = create_database_engine(settings)
    me = Me(id=f"w{os.getpid()}", process=own_process())
    machine = Machine(offer=Offer(), busy={}, max_cpu_runs=limit)
    claim.heartbeat(engine, me, [], devices={}, kinds=[], targets=[])
    ready.release()
    go.wait()
    while claim.anything_queued(engine):
        run_id = claim.claim(engine, me, machine)
        if run_id is not None:
            _carry_out(engine, settings, me, run_id, work)
    engine.dispose()


def _carry_out(engine: Engine, settings: Settings, me: Me, run_id: int, work: Work) -> None:
    root = RunPaths(settings.runs_dir / str(run_id))
    paths = root.attempt(STAGE.name, 1)
    records.make_run_folder(engine, run_id, me, root.root)
    records.plan_stages(engine, run_id, me, [STAGE])
    records.begin_attempt(engine, run_id, me, STAGE, position=0, attempt=1)
    paths.root.mkdir(parents=True)
    write_files(paths, 2, work.events // 2, work.metrics)
    records.mark_running(engine, run_id, me)
    intake = Intake(engine, run_id=run_id, worker_id=me.id, stage=STAGE.name, attempt=1, paths=paths)
    while intake.pull():
        claim.heartbeat(engine, me, [run_id])
    records.finish(engine, run_id, me, DONE, Facts(stage=STAGE.name), attempt=1)
