"""The worker: claims runs, processes them, takes over runs of an earlier worker, and writes heartbeats."""

import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Final
from uuid import uuid4

from app.db import create_database_engine, first_line, why_unavailable
from app.host.processes import own_process
from app.runs.queue import UnknownRun
from app.runs.targets import catalogue
from app.runs.workers import OWN_RUN, WORKER_FRESH_SECONDS
from app.settings import Settings
from trainer.contract.kinds import kinds
from worker import claim, records, recover
from worker.attempt import Office
from worker.claim import Machine, Me
from worker.executors.base import Executor
from worker.executors.choose import make_executor
from worker.intake import LeaseLost
from worker.job import Job
from worker.log import log

BUSY_TURN_SECONDS: Final = 0.1
IDLE_TURN_SECONDS: Final = 0.25
HEARTBEAT_SECONDS: Final = 3.0
SWEEP_SECONDS: Final = 1.0
PATIENCE: Final = 5
"""Number of consecutive failures of the worker itself after which a run is given up."""


class Worker:
    """The worker of one process. Not thread-safe, except `stop`."""

    def __init__(self, settings: Settings, *, executor: Executor | None = None, for_others: bool = True) -> None:
        """Without `for_others` it carries out what it is given, and nobody counts on it for more."""
        self.settings = settings
        self._for_others = for_others
        self._engine = create_database_engine(settings)
        self._me = Me(id=uuid4().hex, process=own_process())
        self._office = Office(
            engine=self._engine,
            settings=settings,
            executor=executor or make_executor(settings),
            me=self._me,
            database_id=records.database_id(self._engine),
        )
        self._devices = self._office.executor.devices
        self._jobs: dict[int, Job] = {}
        self._failures: dict[int, int] = {}
        self._stopped = threading.Event()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._beat_at = self._swept_at = 0.0
        self._away_at = -math.inf

    @property
    def id(self) -> str:
        """This worker's name in the database."""
        return self._me.id

    def run_forever(self) -> None:
        """Work until `stop` is called or SIGTERM or SIGINT arrives; active runs continue and are taken over later."""
        with _Signals(self.stop):
            self._work(lambda: False)

    def run_once(self) -> None:
        """Work until the queue is empty and every run has ended, including runs of an earlier worker."""
        with _Signals(self.stop):
            self._work(lambda: not (self._jobs or self._queue_is_filled() or recover.orphans(self._engine, self._me)))

    def run_single(self, run_id: int, on_turn: Callable[[], None] | None = None) -> None:
        """Process one run to its end, even if others are ahead of it; `on_turn` is called about ten times a second.

        Raises queue.UnknownRun. Runs of an earlier worker are taken over too, and released at the end.
        """

        def ended() -> bool:
            if on_turn is not None:
                on_turn()
            return records.load_run(self._engine, run_id).finished_at is not None

        self._work(ended, only=run_id)

    def run_own(self, record: Callable[[Me], int], recorded: Callable[[int], None]) -> None:
        """Carry a run to its end that is this worker's from the start; `recorded` hears the number `record` gave it.

        Raises what `record` raises; then there is no run.
        """
        self._beat()
        run_id = record(self._me)
        self._take(run_id)
        recorded(run_id)
        self.run_single(run_id)

    def stop(self) -> None:
        """Ask the worker to stop soon; safe in signal handlers and from other threads."""
        self._stopped.set()
        self._wake()

    def _wake(self) -> None:
        """Let the current or next wait end at once."""
        os.write(self._wake_writer, b"x")

    def _work(self, finished: Callable[[], bool], only: int | None = None) -> None:
        log.info("worker started", action="worker-started", worker=self._me.id, pid=os.getpid())
        try:
            while not self._stopped.is_set() and not self._calmly(finished):
                self._turn(only)
                self._wait()
        finally:
            self._let_go()

    def _turn(self, only: int | None) -> None:
        self._calmly(self._beat)
        self._calmly(self._sweep)
        self._calmly(self._refresh)
        for job in list(self._jobs.values()):
            self._tick(job)
        self._calmly(lambda: self._claim(only))

    def _calmly(self, step: Callable[[], Any]) -> Any:
        """Do one step; a temporarily locked or full database does not end anything."""
        try:
            return step()
        except Exception as error:
            if not self._is_away(error):
                raise
            return None

    def _is_away(self, error: Exception) -> bool:
        """Return whether only the database cannot be used now; whatever was to be done is done later."""
        reason = why_unavailable(error)
        if reason:
            self._away_at = time.monotonic()
            log.warning("the database is unavailable", action="database-busy", reason=reason, error=first_line(error))
        return bool(reason)

    def _beat(self) -> None:
        known = self._devices.poll()
        if not known and time.monotonic() - self._beat_at < HEARTBEAT_SECONDS:
            return
        owned = claim.heartbeat(
            self._engine,
            self._me,
            list(self._jobs),
            devices=self._devices.document,
            kinds=list(kinds()) if self._for_others else OWN_RUN,
            targets=catalogue(self.settings).names(patience=0.0),
        )
        if self._beat_at == 0.0:
            claim.forget_old_workers(self._engine)
        self._beat_at = time.monotonic()
        for run_id in self._jobs.keys() - set(owned):
            self._drop(run_id, "its lease was taken by another worker")

    def _sweep(self) -> None:
        if time.monotonic() - self._swept_at < SWEEP_SECONDS:
            return
        self._swept_at = time.monotonic()
        settled = time.monotonic() - self._away_at > WORKER_FRESH_SECONDS
        for orphan in recover.orphans(self._engine, self._me, settled=settled) if self._for_others else ():
            if recover.adopt(self._engine, self._me, orphan):
                self._take(orphan.run_id)

    def _refresh(self) -> None:
        if not self._jobs:
            return
        found = records.states(self._engine, self._jobs)
        for run_id, job in list(self._jobs.items()):
            if run_id not in found:
                self._drop(run_id, "it was removed")
            else:
                job.run = found[run_id]

    def _claim(self, only: int | None) -> None:
        machine = Machine(
            offer=self._devices.offer(),
            busy=self._devices.busy(),
            max_cpu_runs=self.settings.max_cpu_runs,
            max_jobs=self.settings.slurm_max_jobs,
        )
        run_id = claim.claim(self._engine, self._me, machine, only=only)
        if run_id is not None:
            log.info("claimed a run", action="run-claimed", run_id=run_id)
            self._take(run_id)
            self._tick(self._jobs[run_id])

    def _take(self, run_id: int) -> None:
        self._jobs[run_id] = Job(self._office, records.load_run(self._engine, run_id))

    def _tick(self, job: Job) -> None:
        try:
            job.tick()
            self._failures.pop(job.run_id, None)
        except (LeaseLost, UnknownRun) as error:
            self._drop(job.run_id, str(error))
        except Exception as error:
            if not self._is_away(error):
                self._calmly(partial(self._failed, job, error))
        if job.done:
            self._drop(job.run_id, None)
            self._wake()

    def _failed(self, job: Job, error: Exception) -> None:
        if isinstance(error, OSError) and not job.stopping and job.stop_for_full_disk(error):
            return
        count = self._failures[job.run_id] = self._failures.get(job.run_id, 0) + 1
        log.exception("processing a run failed", action="job-error", run_id=job.run_id, count=count)
        if count >= PATIENCE:
            job.give_up(error)

    def _drop(self, run_id: int, why: str | None) -> None:
        self._jobs.pop(run_id).close()
        self._failures.pop(run_id, None)
        if why is not None:
            log.warning("released a run", action="run-dropped", run_id=run_id, why=why)

    def _queue_is_filled(self) -> bool:
        return claim.anything_queued(self._engine)

    def _wait(self) -> None:
        timeout = BUSY_TURN_SECONDS if self._jobs else IDLE_TURN_SECONDS
        moments = [due for job in self._jobs.values() if (due := job.due()) is not None]
        timeout = max(0.0, min([timeout, *(moment - time.time() for moment in moments)]))
        attempts = [job.attempt for job in self._jobs.values() if job.attempt is not None]
        handles = [attempt.handle.descriptor() for attempt in attempts if attempt.handle is not None]
        known = [descriptor for descriptor in handles if descriptor is not None]
        watched = [self._wake_reader, *known]
        ready, _, _ = select.select(watched, [], [], timeout)
        if self._wake_reader in ready:
            os.read(self._wake_reader, 64)

    def _let_go(self) -> None:
        for run_id in list(self._jobs):
            self._drop(run_id, "the worker stops; the run continues")
        self._office.executor.close()
        self._calmly(lambda: claim.sign_off(self._engine, self._me))
        self._engine.dispose()
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        log.info("worker stopped", action="worker-ended", worker=self._me.id)


class _Signals:
    """SIGTERM and SIGINT ask for a graceful stop; a second one ends the process at once."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        for number in self._before:
            signal.signal(number, signal.SIG_DFL)
        self._stop()
