"""One attempt as a Slurm job: submitted once, followed, cancelled, and concluded from its nodes' reports.

The worker's loop only reads what `follow` has found; `follow` runs in the executor's own thread.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from trainer.contract.files import make_folder, write_json_atomically
from worker.executors.base import Fate, Phase, RankProcess, RankUse, Reference, Status
from worker.executors.slurm.commands import Programs
from worker.executors.slurm.endings import End, Job, end_of, end_of_forgotten
from worker.executors.slurm.listing import SlurmJob, read_submission
from worker.executors.slurm.orders import Ending, Orders, read_orders, read_quickly, write_ending, write_orders
from worker.executors.slurm.refusals import explain
from worker.executors.slurm.reports import Processes, Reports, merge, read_processes, read_reports
from worker.executors.slurm.script import Defaults, job_name, job_script, node_plan, sbatch_arguments, script_path
from worker.executors.slurm.states import Seen, meaning_of
from worker.facts import last_line
from worker.log import log
from worker.plan import AttemptPlan

REPORT_SECONDS: Final = 10.0
"""How long the reports of nodes may arrive after the job's end, on a slow file system."""
KILL_LEAD_SECONDS: Final = 0.6
"""Every node has read the order by then."""
CANCEL_AGAIN_SECONDS: Final = 15.0
STOPPED_FIRST: Final = "it was stopped before it was submitted"


class SlurmHandle:
    """The last known state of one attempt, and what has to be done about it."""

    def __init__(
        self,
        plan: AttemptPlan,
        programs: Programs,
        *,
        hurry: Callable[[], None],
        defaults: Defaults | None = None,
        job_id: int | None = None,
    ) -> None:
        """With `defaults` it is submitted unless a job with its name exists, otherwise it is searched for.

        `hurry` lets the executor's thread call `follow` soon.
        """
        self.plan, self.name, self._programs, self._defaults = plan, job_name(plan), programs, defaults
        self.job_id = job_id
        self.closed = False
        self._lock = threading.Lock()
        self._hurry = hurry
        self._stop = self._destroy = False
        self._destroyed = False
        self._cancelled_at: float | None = None
        self._over_since: float | None = None
        self._orders = Orders() if defaults is not None else read_orders(plan.paths.nodes)
        self._submitting = False
        self._processes = Processes(ranks={}, usage={})
        self._status = Status(phase=Phase.LOOKING)
        if defaults is not None:
            self._status = Status(phase=Phase.WAITING, why="it is being submitted to Slurm")

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do: it has ended, or it was released and nothing was asked of it."""
        ended = self._status.phase in {Phase.ENDED, Phase.ABSENT}
        asked = self._destroy or (self._stop and self._cancelled_at is None)
        return ended or (self.closed and not asked)

    def status(self) -> Status:
        """Return the last known status."""
        return self._status

    def reference(self) -> Reference | None:
        """Return the number of the job and its name."""
        return None if self.job_id is None else {"job": self.job_id, "name": self.name}

    def descriptor(self) -> int | None:
        """Return None: there is nothing to wait on."""
        return None

    def ranks(self) -> Mapping[int, RankProcess]:
        """Return the ranks as their nodes last reported them."""
        return self._processes.ranks

    def usage(self, devices: Mapping[int, str]) -> Mapping[int, RankUse]:  # noqa: ARG002  # the nodes do not know GPUs
        """Return CPU time and memory as the nodes last reported them."""
        return self._processes.usage

    def ask_for_stacks(self) -> None:
        """Let the supervisors signal the ranks."""
        self._order(stacks=self._orders.stacks + 1)

    def take_stacks(self, ranks: Collection[int]) -> None:
        """Do nothing: py-spy cannot look into processes of other machines."""

    def stop(self) -> None:
        """Cancel the job."""
        with self._lock:
            self._stop = True
            if self._defaults is not None and not self._submitting:
                self._end(End(fate=Fate.NOT_STARTED, why=STOPPED_FIRST))
                return
        with contextlib.suppress(OSError):
            self._order(stop=True)  # reaches the nodes even if Slurm does not answer
        self._hurry()

    def kill_ranks(self) -> int:
        """Let the supervisors of all nodes kill their ranks at one moment, and return how many were alive.

        A rank whose peer dies a little earlier would end by itself, with an exception.
        """
        self._order(kill_at=time.time() + KILL_LEAD_SECONDS)
        return sum(process.alive for process in self._processes.ranks.values())

    def destroy(self) -> None:
        """Cancel the job without any grace."""
        if not self._destroyed:
            self._stop = self._destroy = self._destroyed = True
            self._hurry()

    def close(self) -> None:
        """Release it; the job continues."""
        self.closed = True

    def _order(self, **changed: Any) -> None:
        self._orders = replace(self._orders, **changed)
        write_orders(self.plan.paths.nodes, self._orders)

    # What follows runs in the executor's thread.

    def look(self) -> None:
        """Read what the nodes have written; ends an attempt whose ranks all exited with 0 without asking Slurm."""
        if self.settled or self._defaults is not None:
            return
        self._processes = read_processes(self.plan.paths, self.plan.nodes, list(self._processes.ranks))
        reports = read_reports(self.plan.paths, self.plan.nodes)
        if reports.well(self.plan.nodes):
            self._report(reports, End(fate=Fate.REPORTED))

    def unreachable(self, why: str) -> None:
        """Slurm does not answer: keep what is known, and say so."""
        with self._lock:
            if self.settled:
                return
            phase = Phase.UNREACHABLE if self._defaults is None else Phase.WAITING
            self._status = Status(phase=phase, why=f"Slurm does not answer: {why}", since=self._status.since)

    def follow(self, jobs: Sequence[SlurmJob]) -> None:
        """Do the next step, given all jobs of this user. Raises Unavailable, OSError."""
        if self._status.phase in {Phase.ENDED, Phase.ABSENT}:
            return
        job = self._find(jobs)
        if job is not None:
            self._take(job)
        elif self._defaults is not None:
            self._submit(self._defaults)
        elif self.job_id is None:
            self._not_found()
        else:
            self._forgotten(self.job_id)

    def _find(self, jobs: Sequence[SlurmJob]) -> SlurmJob | None:
        if self.job_id is not None:
            return next((job for job in jobs if job.id == self.job_id), None)
        return max((job for job in jobs if job.name == self.name), key=lambda job: job.id, default=None)

    def _submit(self, defaults: Defaults) -> None:
        with self._lock:
            self._submitting = not self._stop
        if not self._submitting:
            self._end(End(fate=Fate.NOT_STARTED, why=STOPPED_FIRST))
            return
        try:
            self._write_files(defaults)
            answer = self._programs.submit(sbatch_arguments(self.plan, defaults))
        finally:
            self._submitting = False
        job_id = read_submission(answer.out)
        if answer.code != 0 or job_id is None:
            self._end(End(fate=Fate.NOT_STARTED, why=explain(answer.text)))
            return
        with self._lock:
            self._submitted(job_id)
        self._log("submitted a job", action="job-submitted", job=job_id)

    def _write_files(self, defaults: Defaults) -> None:
        paths = self.plan.paths
        for number in range(self.plan.nodes):
            make_folder(paths.node(number).folder, within=paths.run)
            for report in (paths.node(number).exit, paths.node(number).state):
                report.write_text("{}")  # a shared file system may hide a new file, but checks an existing one
        write_json_atomically(paths.plan, node_plan(self.plan, defaults), within=paths.run)
        write_orders(paths.nodes, self._orders)
        write_ending(paths.nodes, Ending())
        script_path(self.plan).write_text(job_script(self.plan, defaults))

    def _submitted(self, job_id: int) -> None:
        self.job_id, self._defaults = job_id, None
        self._status = Status(phase=Phase.WAITING, why=f"Slurm job {job_id} was submitted")

    def _take(self, job: SlurmJob) -> None:
        if self.job_id is None:
            with self._lock:
                self._submitted(job.id)
            self._log("found the job of an attempt", action="job-found", job=job.id)
        seen = meaning_of(job)
        if seen.withdraw:
            self._programs.cancel(job.id)
        elif self._stop and seen.phase is not Phase.ENDED:
            self._cancel(job.id)
        if seen.phase is Phase.ENDED:
            self._over(seen)
        else:
            self._status = Status(phase=seen.phase, why=seen.why, since=job.since)

    def _cancel(self, job_id: int) -> None:
        """Cancel, and again if the job does not end."""
        moment = time.monotonic()
        if self._destroy:
            if not read_reports(self.plan.paths, self.plan.nodes).complete(self.plan.nodes):
                self._programs.cancel(job_id, "--signal=KILL", "--full")
            self._programs.cancel(job_id)
            self._destroy = False
        elif self._cancelled_at is None or moment - self._cancelled_at > CANCEL_AGAIN_SECONDS:
            self._programs.cancel(job_id)
        else:
            return
        self._cancelled_at = moment
        self._log("cancelled a job", action="job-cancelled", job=job_id)

    def _over(self, seen: Seen) -> None:
        """Conclude a job that has ended, once its nodes have reported or cannot any more."""
        reports = read_reports(self.plan.paths, self.plan.nodes)
        if self._over_since is None:
            self._over_since = time.monotonic()
        late = time.monotonic() - self._over_since < REPORT_SECONDS
        if reports.started and not reports.complete(self.plan.nodes) and late and seen.fate is not Fate.NODE_LOST:
            return
        failed = self._programs.failed_nodes(reports.hosts) if seen.fate in {Fate.NODE_LOST, Fate.REQUEUED} else []
        self._report(reports, end_of(self._facts(failed), seen, reports))

    def _facts(self, failed: Sequence[str] = ()) -> Job:
        return Job(
            id=self.job_id or 0,
            nodes=self.plan.nodes,
            folder=str(self.plan.paths.root),
            said=last_line(self.plan.paths.shim_log),
            stopped=self._stop,
            failed_nodes=failed,
        )

    def _not_found(self) -> None:
        """Decide about an attempt of an earlier worker without a job in Slurm."""
        known = read_quickly(self.plan.paths.nodes / "head.json").get("job_id")
        if known is None:
            self._status = Status(phase=Phase.ABSENT)
        else:
            self.job_id = int(known)

    def _forgotten(self, job_id: int) -> None:
        state = self._programs.accounting(job_id)
        seen = meaning_of(SlurmJob(id=job_id, state=state)) if state else None
        if seen is not None and seen.phase is Phase.ENDED:
            self._over(seen)
        else:
            reports = read_reports(self.plan.paths, self.plan.nodes)
            self._report(reports, end_of_forgotten(self._facts(), reports))

    def _report(self, reports: Reports, end: End) -> None:
        try:
            if reports.ends and not self.plan.paths.exit.exists():
                merged = merge(reports, self.plan.marker)
                write_json_atomically(self.plan.paths.exit, merged, within=self.plan.paths.run)
        except FileNotFoundError:
            end = End(fate=Fate.GONE)
        self._end(end)

    def _end(self, end: End) -> None:
        self._defaults = None
        self._status = Status(phase=Phase.ENDED, fate=end.fate, why=end.why, node=end.node, since=self._status.since)
        self._log("a job ended", action="job-ended", job=self.job_id, fate=str(end.fate), why=end.why)

    def _log(self, text: str, **fields: Any) -> None:
        log.info(text, run_id=self.plan.run_id, stage=self.plan.stage, attempt=self.plan.attempt, **fields)
