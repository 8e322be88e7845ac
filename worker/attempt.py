"""One attempt of one stage in this worker's care: started or found again, watched, ended, and read to its last line."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Engine

from app.runs.models import Run
from app.runs.states import State
from app.settings import Settings
from trainer.contract.kinds import StagePlan
from worker import records
from worker.claim import Me
from worker.executors.base import Executor, Handle
from worker.executors.local.processes import STOPPED_STATES, Identity, boot_id
from worker.executors.local.shim import EXIT_CANNOT_WRITE, EXIT_TAKEN
from worker.facts import Facts, Supervisor, gather, read_json
from worker.gpus import GpuWatch, by_rank
from worker.hang import Stop, Watch
from worker.intake import Intake
from worker.killer import Killer, course_of
from worker.log import log
from worker.plan import plan_attempt, run_paths
from worker.usage import UsageLog

SHIM_START_SECONDS: Final = 2.0
"""A supervisor that an earlier worker was about to start writes shim.json within this time, or never began."""
OVERDUE_SECONDS: Final = 5.0
"""Beyond the grace; a supervisor that has not ended by then is itself ended."""
PULL_SECONDS: Final = 1.0
"""Longest stretch of reading before other runs and the heartbeat get their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """What everything in a worker shares."""

    engine: Engine
    settings: Settings
    executor: Executor
    me: Me
    database_id: str
    gpus: GpuWatch = field(default_factory=GpuWatch)


class Attempt:
    """A process group from its start to its last line. Methods may be called again after an exception."""

    def __init__(self, office: Office, run: Run, stage: StagePlan, number: int, *, began_at: float) -> None:
        self.office, self.run_id, self.stage, self.number = office, int(run.id or 0), stage, number
        self._on_gpus = run.device == "cuda"
        self.plan = plan_attempt(run, stage, number, office.settings, office.database_id)
        self.paths = self.plan.paths
        self.began_at = began_at
        self.handle: Handle | None = None
        self.ended = False
        """Nothing of it runs any more; what it wrote may not be read to its end yet."""
        self._supervisor = Supervisor.REPORTED
        self._orphans_ended = 0
        self._term_at: float | None = None
        self._looking_since: float | None = None
        self._flags: set[int] = set()
        self._watch = Watch(self.paths, self.plan.marker, self.plan.ranks, office.settings)
        self._intake = Intake(
            office.engine,
            run_id=self.run_id,
            worker_id=office.me.id,
            stage=stage.name,
            attempt=number,
            paths=self.paths,
        )
        self._usage = UsageLog(
            office.engine,
            run_id=self.run_id,
            worker_id=office.me.id,
            stage=stage.name,
            attempt=number,
            marker=self.plan.marker,
        )
        self.killer = self._make_killer()

    def _make_killer(self) -> Killer | None:
        kills, run = self.stage.kills, run_paths(self.office.settings, self.run_id)
        if kills is None:
            return None
        course = course_of(run, kills.after_stage, self.plan.ranks)
        return Killer(run, self.stage.name, self.number, ranks=self.plan.ranks, plan=kills, course=course)

    @property
    def heard(self) -> bool:
        """Whether a rank has begun."""
        return any(heard.started for heard in self._intake.ranks.values())

    def launch(self) -> None:
        """Start it. Raises OSError when that is impossible."""
        self.handle = self.office.executor.start(self.plan)
        self._log("started an attempt", action="attempt-started", command=self.plan.shell())
        self._note_shim(self.handle.identity)

    def find(self) -> None:
        """Find the supervisor of an attempt that an earlier worker began, or what it left; asked again until known."""
        self.handle = self.office.executor.adopt(self.paths, self.plan.marker)
        if self.handle is not None:
            self._log("found the supervisor of an attempt", action="attempt-adopted")
            self._note_shim(self.handle.identity)
        elif self.paths.exit.exists():
            self.ended = True
        elif not self.paths.shim.exists():
            self._wait_for_shim()
        elif read_json(self.paths.shim).get("boot") != boot_id():
            self._supervisor, self.ended = Supervisor.REBOOTED, True
        else:
            self._lost()

    def _wait_for_shim(self) -> None:
        self._looking_since = self._looking_since or time.monotonic()
        if time.monotonic() - self._looking_since > SHIM_START_SECONDS:
            self._looking_since = None
            self.launch()  # nothing of it ran; should a shim appear after all, only one of the two gets the attempt

    def _lost(self) -> None:
        self._supervisor, self.ended = Supervisor.LOST, True
        self._orphans_ended += self.office.executor.end_orphans(self.plan.marker)

    def supervise(self, run: Run) -> Stop | None:
        """Read, watch and, if the run is stopping, end it; return why the worker itself wants the run stopped."""
        handle = self.handle
        if handle is None:
            self.find()
            return None
        up_to_date = self._pull(final=False)
        stop = None
        if run.state == State.STOPPING:
            self._end(handle)
        elif up_to_date:  # else a rank may seem silent whose events are only not read yet
            stop = self._look_after()
        self._sample()
        if not handle.alive:
            self._supervisor_ended(handle)
        else:
            self._continue_if_stopped(handle.identity)
        return stop

    def drain(self) -> bool:
        """Read what is left after the end, a bounded time; True once everything is in the database."""
        return self._pull(final=True)

    def facts(self, **known: Any) -> Facts:
        """Return what is known about the ended attempt."""
        if self._supervisor is not Supervisor.REPORTED:
            known["supervisor"] = self._supervisor
        return gather(
            run_paths(self.office.settings, self.run_id),
            self.stage.name,
            self.number,
            launcher=self.stage.launcher,
            expected=self.plan.ranks,
            orphans_ended=self._orphans_ended,
            node=self.office.me.host,
            **known,
        )

    def killed_on_purpose(self, facts: Facts) -> bool:
        """Whether the plan ended it."""
        if self.killer is None or facts.supervisor is not Supervisor.REPORTED:
            return False
        self.killer.confirm({rank.rank: rank.signal for rank in facts.ranks})
        return self.killer.killed

    def close(self) -> None:
        """Let go of it; what runs goes on."""
        if self.handle is not None:
            self.handle.close()

    def destroy(self) -> None:
        """End it by force."""
        if self.handle is not None:
            self._orphans_ended += self.handle.destroy()

    def _pull(self, *, final: bool) -> bool:
        deadline = time.monotonic() + PULL_SECONDS
        while self._intake.pull(final=final):
            if time.monotonic() > deadline:
                return False
        return True

    def _look_after(self) -> Stop | None:
        ranks = self._intake.ranks
        flags = self._watch.flags(ranks)
        if flags != self._flags:
            self._record(records.flag_stalled, {rank: rank in flags for rank in flags ^ self._flags})
            self._flags = flags
        if self.killer is not None and self.killer.tick(self.plan.marker):
            self._log("killed the ranks on purpose", action="kill")
        return self._watch.check(ranks, self.began_at)

    def _sample(self) -> None:
        ranks = self._intake.ranks
        gpus = by_rank(ranks, self.office.gpus.now()) if self._on_gpus else {}
        self._usage.tick(ranks, gpus)

    def _end(self, handle: Handle) -> None:
        if self._term_at is None:
            handle.terminate()
            self._term_at = time.monotonic()
        elif time.monotonic() - self._term_at > self.plan.grace_seconds + OVERDUE_SECONDS:
            self._log("the supervisor does not end; it is ended by force", action="supervisor-overdue")
            self.destroy()

    def _continue_if_stopped(self, shim: Identity) -> None:
        # A supervisor that somebody stopped would leave its run without an end; continuing it harms nobody.
        found = shim.stat()
        if found is not None and found.state in STOPPED_STATES:
            self._log("the supervisor was stopped; it goes on", action="supervisor-continued")
            shim.send(signal.SIGCONT)

    def _supervisor_ended(self, handle: Handle) -> None:
        code = handle.returncode
        handle.close()
        self.handle = None
        if code == EXIT_TAKEN:
            return  # another shim has the attempt; it is looked for in the next turn
        if self.paths.exit.exists():
            self.ended = True
            return
        self._lost()
        if code == EXIT_CANNOT_WRITE:
            self._supervisor = Supervisor.NO_SPACE

    def _note_shim(self, shim: Identity) -> None:
        self._record(records.note_shim, shim)

    def _record(self, write: Callable[..., None], value: Any) -> None:
        office = self.office
        write(office.engine, self.run_id, office.me, (self.stage.name, self.number), value)

    def _log(self, text: str, **fields: Any) -> None:
        log.info(text, run_id=self.run_id, stage=self.stage.name, attempt=self.number, **fields)
