"""One attempt of one stage: started or found again, watched, ended, and read to its last line."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Engine

from app.runs.models import Run
from app.runs.states import State
from app.settings import Settings
from trainer.contract.kinds import StagePlan
from worker import records
from worker.claim import Me
from worker.executors.base import Executor, Fate, Handle, Phase, Reference, Status
from worker.facts import Facts, gather
from worker.hang import Stop, Watch
from worker.intake import Intake
from worker.killer import Killer, course_of
from worker.log import log
from worker.plan import plan_attempt, run_paths
from worker.usage import UsageLog

OVERDUE_SECONDS: Final = 5.0
"""Seconds after the grace period; an attempt that has not ended by then is killed."""
LATE_SECONDS: Final = 2.0
"""An attempt that began this much later than it was started had to wait."""
PULL_SECONDS: Final = 1.0
"""Maximum reading time before other runs and the heartbeat get their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """Objects shared by all parts of a worker."""

    engine: Engine
    settings: Settings
    executor: Executor
    me: Me
    database_id: str


class Attempt:
    """A process group from its start to its last line. Methods may be called again after an exception."""

    def __init__(
        self,
        office: Office,
        run: Run,
        stage: StagePlan,
        number: int,
        *,
        began_at: float,
        reference: Reference | None = None,
    ) -> None:
        """Take `began_at` (unix seconds) and, for an attempt started by an earlier worker, its executor's reference."""
        self.office, self.run_id, self.stage, self.number = office, int(run.id or 0), stage, number
        self.plan = plan_attempt(run, stage, number, office.settings, office.database_id)
        self.paths = self.plan.paths
        self.began_at = began_at
        self.handle: Handle | None = None
        self.ended: Status | None = None
        """Set when none of its processes runs any more; its output may not be completely read yet."""
        self._reference, self._waiting = reference, run.waiting_for
        self.waiting = False
        """Whether it has been accepted and does not run yet."""
        self._stop_asked_at: float | None = None
        self._told: tuple[object, ...] | None = None
        """What was recorded last about a run that is held up: reason, rank, phase and step."""
        self._flags: set[int] = set()
        self._watch = Watch(self.paths, self.plan.ranks, office.settings)
        place: dict[str, Any] = {"run_id": self.run_id, "worker_id": office.me.id, "stage": stage.name}
        self._intake = Intake(office.engine, **place, attempt=number, paths=self.paths)
        self._usage = UsageLog(office.engine, **place, attempt=number)
        self.killer = self._make_killer()

    def _make_killer(self) -> Killer | None:
        kills, run = self.stage.kills, run_paths(self.office.settings, self.run_id)
        if kills is None:
            return None
        course = course_of(run, kills.after_stage, self.plan.ranks)
        return Killer(run, self.stage.name, self.number, ranks=self.plan.ranks, plan=kills, course=course)

    @property
    def heard(self) -> bool:
        """Whether a rank has started."""
        return any(heard.started for heard in self._intake.ranks.values())

    def launch(self) -> None:
        """Start it. Raises OSError if that is impossible."""
        self.handle = self.office.executor.start(self.plan)
        self._log("started an attempt", action="attempt-started", command=self.plan.shell())
        self._note_reference(self.handle)

    def supervise(self, run: Run) -> Stop | None:
        """Read, watch and, if the run is stopping, end it; return why the worker wants to stop the run, if it does."""
        if self.handle is None:
            self.handle = self.office.executor.attach(self.plan, self._reference)
        status = self.handle.status()
        if status.phase is Phase.ABSENT:
            self.handle.close()
            self.launch()  # if a supervisor appears after all, only one of the two gets the attempt
            return None
        self._note_reference(self.handle)
        self._note_waiting(status)
        self._note_start(status)
        up_to_date = self._pull(final=False)
        stop = None
        if run.state == State.STOPPING:
            self._end(self.handle, status)
        elif (
            up_to_date and status.phase is Phase.RUNNING
        ):  # otherwise a rank could seem silent although its events are just not read yet
            stop = self._look_after(self.handle, status)
        if status.phase is Phase.RUNNING:
            self._usage.tick(self._intake.ranks, self.handle.usage)
        elif status.phase is Phase.ENDED:
            self.ended = status
        return stop

    def drain(self) -> bool:
        """Read the remaining output for a limited time; return True once everything is in the database."""
        return self._pull(final=True)

    def facts(self, **known: Any) -> Facts:
        """Return what is known about the ended attempt."""
        ended = self.ended or Status(phase=Phase.ENDED, fate=Fate.LOST)
        if ended.fate is not Fate.REPORTED:
            known["fate"] = ended.fate
        if ended.fate is Fate.NOT_STARTED:
            known["launch_error"] = ended.why
        known |= {"why": ended.why, "lost_node": ended.node}
        return gather(
            run_paths(self.office.settings, self.run_id),
            self.stage.name,
            self.number,
            launcher=self.stage.launcher,
            expected=self.plan.ranks,
            orphans_ended=ended.processes_ended,
            nodes={rank: heard.node for rank, heard in self._intake.ranks.items() if heard.node},
            **known,
        )

    def killed_on_purpose(self, facts: Facts) -> bool:
        """Whether a planned kill ended it."""
        if self.killer is None or facts.fate is not Fate.REPORTED:
            return False
        self.killer.confirm({rank.rank: rank.signal for rank in facts.ranks})
        return self.killer.killed

    def close(self) -> None:
        """Release it; its processes continue."""
        if self.handle is not None:
            self.handle.close()

    def destroy(self) -> None:
        """Kill it."""
        if self.handle is not None:
            self.handle.destroy()

    def _pull(self, *, final: bool) -> bool:
        deadline = time.monotonic() + PULL_SECONDS
        while self._intake.pull(final=final):
            if time.monotonic() > deadline:
                return False
        return True

    def _look_after(self, handle: Handle, status: Status) -> Stop | None:
        ranks = self._intake.ranks
        flags = self._watch.flags(ranks)
        if flags != self._flags:
            self._record(records.flag_stalled, {rank: rank in flags for rank in flags ^ self._flags})
            self._flags = flags
        if self.killer is not None and self.killer.tick(handle):
            self._log("killed the ranks as planned", action="kill")
        stop = self._watch.check(ranks, status.since or self.began_at, handle)
        if self.stage.program is not None:
            self._tell(stop)  # whether to stop it is up to the user who started it
            return None
        return stop

    def _tell(self, stop: Stop | None) -> None:
        """Record what holds up a run that continues, whenever that changes, and its end."""
        told = None if stop is None else (stop.reason, *(stop.failure[key] for key in ("rank", "phase", "step")))
        if told == self._told:
            return
        self._told = told
        text = "" if stop is None else stop.diagnosis
        self._log("ranks are silent" if text else "ranks report again", action="hang-seen", diagnosis=text)
        self._record(records.note_diagnosis, text)

    def _end(self, handle: Handle, status: Status) -> None:
        if self._stop_asked_at is None:
            if status.phase in {Phase.RUNNING, Phase.WAITING}:
                handle.stop()
                self._stop_asked_at = time.monotonic()
        elif time.monotonic() - self._stop_asked_at > self.plan.grace_seconds + OVERDUE_SECONDS:
            self._log("the attempt does not end and is killed", action="attempt-overdue")
            handle.destroy()

    def _note_reference(self, handle: Handle) -> None:
        reference = handle.reference()
        if reference is not None and reference != self._reference:
            self._record(records.note_reference, reference)
            self._reference = reference

    def _note_start(self, status: Status) -> None:
        """Move the start of an attempt that had to wait: waiting does not count as running."""
        self.waiting = status.phase is Phase.WAITING
        if status.phase is Phase.RUNNING and (status.since or 0.0) > self.began_at + LATE_SECONDS:
            self.began_at = status.since or self.began_at
            self._record(records.note_start, self.began_at)

    def _note_waiting(self, status: Status) -> None:
        why = status.why if status.phase in {Phase.WAITING, Phase.UNREACHABLE} else ""
        if why != self._waiting:
            self._record(records.note_waiting, why)
            self._waiting = why

    def _record(self, write: Callable[..., None], value: Any) -> None:
        office = self.office
        write(office.engine, self.run_id, office.me, (self.stage.name, self.number), value)

    def _log(self, text: str, **fields: Any) -> None:
        log.info(text, run_id=self.run_id, stage=self.stage.name, attempt=self.number, **fields)
