"""One run owned by this worker, from its claim or takeover to its final state, stage by stage."""

import errno
import time

from app.runs.models import Run, StageAttempt
from app.runs.results.reading import read_file
from app.runs.states import Reason, State
from trainer.contract.config import RunConfig
from trainer.contract.files import write_json_atomically
from trainer.contract.kinds import StagePlan, kinds
from trainer.contract.result import Result
from worker import diagnosis, records
from worker.attempt import Attempt, Office
from worker.executors.base import Fate
from worker.facts import Facts
from worker.hang import Stop
from worker.log import log
from worker.outcome import Outcome, failure_document, invalid_result, judge, stage_ended_well
from worker.plan import run_paths


class Job:
    """A run and its current attempt, if there is one."""

    def __init__(self, office: Office, run: Run) -> None:
        self.office, self.run, self.run_id = office, run, int(run.id or 0)
        self.paths = run_paths(office.settings, self.run_id)
        self.done = False
        self.attempt: Attempt | None = None
        self._stages: list[StagePlan] = []
        self._ran = 0.0
        """Seconds that earlier attempts ran."""
        self._goes_on = False
        """Whether the last tick left something that can be done at once."""

    @property
    def stopping(self) -> bool:
        """Whether the run has to end, whoever requested it."""
        return self.run.state == State.STOPPING

    def due(self) -> float | None:
        """Return the unix time of the next time-critical action, None if there is none."""
        if self._goes_on:
            return 0.0
        attempt = self.attempt
        return None if attempt is None or attempt.killer is None or attempt.ended is not None else attempt.killer.due()

    def tick(self) -> None:
        """Do what can be done now; after an exception the next call continues where this one failed.

        Raises LeaseLost if another worker owns the run now, sqlalchemy.exc.OperationalError, OSError.
        """
        self._goes_on = False
        if not self._stages:
            self._plan()
            self._goes_on = True
        elif self.attempt is None:
            self._next()
        elif self.attempt.ended is not None:
            if self.attempt.drain():
                self._conclude(self.attempt)
        else:
            self._supervise(self.attempt)
            self._goes_on = self.attempt.ended is not None

    def stop(self, stop: Stop) -> None:
        """End the run for a reason found by the worker."""
        log.warning("stopping a run", action="run-stopping", run_id=self.run_id, reason=str(stop.reason))
        records.begin_stop(self.office.engine, self.run_id, self.office.me, stop)
        self.refresh()

    def stop_for_full_disk(self, error: OSError) -> bool:
        """End the run if `error` means that the disk is full, and return whether it does."""
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            return False
        text = f"The worker could not write the files of the run, because the disk is full: {error}."
        failure = failure_document(last_line=str(error))
        self.stop(Stop(reason=Reason.DISK_FULL, failure=failure, diagnosis=text))
        return True

    def give_up(self, error: Exception) -> None:
        """End a run that the worker cannot handle, so that it does not remain in a wrong state."""
        stage, number = "", records.NOT_STARTED
        if self.attempt is not None:
            self.attempt.destroy()
            stage, number = self.attempt.stage.name, self.attempt.number
        facts = Facts(stage=stage, launch_error=f"the worker failed: {type(error).__name__}: {error}")
        self._finish(judge(facts), facts, number)

    def refresh(self) -> None:
        """Reload the run's state."""
        self.run = records.load_run(self.office.engine, self.run_id)

    def close(self) -> None:
        """Release the run; its processes continue."""
        if self.attempt is not None:
            self.attempt.close()

    def _plan(self) -> None:
        try:
            kind = kinds()[self.run.kind]
            stages = kind.stages(kind.params.model_validate(self.run.params))
            records.make_run_folder(self.office.engine, self.run_id, self.office.me, self.paths.root)
            if not self.paths.config.exists():
                write_json_atomically(self.paths.config, self._config().model_dump(mode="json"))
        except (KeyError, ValueError, OSError) as error:
            facts = Facts(stage="planning", launch_error=f"{type(error).__name__}: {error}")
            self._finish(judge(facts), facts, records.NOT_STARTED)
            return
        records.plan_stages(self.office.engine, self.run_id, self.office.me, stages)
        self._stages = stages

    def _config(self) -> RunConfig:
        run = self.run
        return RunConfig(
            run_id=self.run_id,
            kind=run.kind,
            preset=run.preset,
            params=run.params,
            backend=run.backend or "gloo",
            device=run.device or "cpu",
            gpus=run.gpus,
            datasets_dir=str(self.office.settings.datasets_dir),
            max_image_pixels=self.office.settings.max_image_pixels,
            resume_from=None if run.resume_from is None else str(self.paths.root / run.resume_from),
        )

    def _next(self) -> None:
        """Start the next attempt, or continue with the one that an earlier worker started."""
        rows = records.attempts(self.office.engine, self.run_id)
        running = next((row for row in rows if row.state == "running"), None)
        self._ran = sum(_seconds(row) for row in rows)
        succeeded = {row.stage for row in rows if row.state == "succeeded"}
        waiting = [index for index, stage in enumerate(self._stages) if stage.name not in succeeded]
        if running is not None:
            began_at = running.started_at.timestamp() if running.started_at else time.time()
            stage = self._stages[running.position]
            self.attempt = Attempt(
                self.office, self.run, stage, running.attempt, began_at=began_at, reference=running.reference
            )
        elif self.stopping:
            facts = self._stop_facts(Facts(stage=self._stages[waiting[0] if waiting else -1].name))
            self._finish(judge(facts), facts, records.NOT_STARTED)
        elif waiting:
            self._start(waiting[0], rows)
        else:
            last = rows[-1]
            self._finish_with_result(Facts(stage=last.stage), last.attempt, recorded=True)

    def _start(self, position: int, rows: list[StageAttempt]) -> None:
        office, stage = self.office, self._stages[position]
        number = max((row.attempt for row in rows if row.position == position), default=0) + 1
        records.begin_attempt(office.engine, self.run_id, office.me, stage, position=position, attempt=number)
        try:
            attempt = Attempt(office, self.run, stage, number, began_at=time.time())
            attempt.launch()
        except (OSError, LookupError) as error:
            facts = Facts(stage=stage.name, launcher=stage.launcher, launch_error=str(error))
            self._finish(judge(facts), facts, number)
            return
        self.attempt = attempt

    def _supervise(self, attempt: Attempt) -> None:
        stop = attempt.supervise(self.run)
        if self.run.state == State.STARTING and attempt.heard:
            records.mark_running(self.office.engine, self.run_id, self.office.me)
            self.refresh()
        stop = stop or self._over_time(attempt)
        if stop is not None and not self.stopping and attempt.ended is None:
            self.stop(stop)

    def _over_time(self, attempt: Attempt) -> Stop | None:
        limit = self.office.settings.run_limit_seconds
        current = 0.0 if attempt.waiting else time.time() - attempt.began_at
        if self.stopping or self._ran + current <= limit:
            return None
        text = diagnosis.time_limit(attempt.stage.name, limit)
        return Stop(reason=Reason.TIME_LIMIT, failure=failure_document(last_line=text), diagnosis=text)

    def _conclude(self, attempt: Attempt) -> None:
        self.refresh()
        facts = self._stop_facts(attempt.facts())
        if not self.stopping and attempt.killed_on_purpose(facts):
            self._close(attempt, facts, "killed")
        elif not self.stopping and facts.fate is Fate.REQUEUED:
            self._close(attempt, facts, "requeued")
        elif self.stopping or not stage_ended_well(facts):
            self._finish(judge(facts), facts, attempt.number)
        elif attempt.stage.name == self._stages[-1].name:
            self._finish_with_result(facts, attempt.number)
        else:
            self._close(attempt, facts, "succeeded")

    def _close(self, attempt: Attempt, facts: Facts, state: str) -> None:
        records.close_attempt(
            self.office.engine, self.run_id, self.office.me, attempt=attempt.number, facts=facts, state=state
        )
        if self.run.state == State.STARTING:
            records.mark_running(self.office.engine, self.run_id, self.office.me)
        log.info("an attempt ended", action="attempt-ended", run_id=self.run_id, stage=facts.stage, state=state)
        self.attempt = None
        self._next()

    def _stop_facts(self, facts: Facts) -> Facts:
        run = self.run
        return facts.with_stop(
            cancelled=run.cancel_requested_at is not None,
            stop_reason=None if run.stop_reason is None else Reason(run.stop_reason),
            noted={"failure": run.failure, "diagnosis": run.diagnosis},
        )

    def _finish_with_result(self, facts: Facts, number: int, *, recorded: bool = False) -> None:
        reading = read_file(self.paths.result, kind=self.run.kind)
        if reading.result is None:
            problem = f"{self.paths.result}: {' '.join(reading.problem.split())[:1000]}"
            self._finish(invalid_result(facts, problem), facts, number, recorded=recorded)
            return
        outcome = Outcome(state=State.SUCCEEDED, reason=Reason.COMPLETED, failure=None, diagnosis="")
        self._finish(outcome, facts, number, result=reading.result, recorded=recorded)

    def _finish(
        self, outcome: Outcome, facts: Facts, number: int, *, result: Result | None = None, recorded: bool = False
    ) -> None:
        office = self.office
        attempt = records.NOT_STARTED if recorded else number
        try:
            records.finish(office.engine, self.run_id, office.me, outcome, facts, attempt=attempt, result=result)
        except records.CancelCameFirst:
            self.refresh()
            facts = self._stop_facts(facts)
            outcome, result = judge(facts), None
            records.finish(office.engine, self.run_id, office.me, outcome, facts, attempt=attempt)
        self.done = True
        log.info(
            "a run ended",
            action="run-ended",
            run_id=self.run_id,
            state=str(outcome.state),
            reason=str(outcome.reason),
            verdict=None if result is None else str(result.verdict),
        )


def _seconds(row: StageAttempt) -> float:
    if row.started_at is None or row.finished_at is None:
        return 0.0
    return max(0.0, (row.finished_at - row.started_at).total_seconds())
