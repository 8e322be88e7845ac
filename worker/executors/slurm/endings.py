"""How an attempt ended, from the state of its job and the reports of its nodes: a pure table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from worker.executors.base import Fate
from worker.executors.slurm.listing import listed
from worker.executors.slurm.reports import Reports
from worker.executors.slurm.states import Seen

INVISIBLE: Final = (
    "it wrote nothing to {folder}: the nodes must see that folder (DDP_AUDIT_RUNS_DIR on a shared file system) and "
    "this installation; the log of slurmd on the node says more"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of an attempt."""

    fate: Fate
    why: str = ""
    node: str = ""
    """The node that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is known of an attempt whose job has ended."""

    id: int
    nodes: int
    folder: str
    said: str = ""
    """Last line of what its batch script wrote."""
    stopped: bool = False
    """Whether this service requested its end."""
    failed_nodes: Sequence[str] = ()


def end_of(job: Job, seen: Seen, reports: Reports) -> End:
    """Return how the attempt ended."""
    if seen.fate in {Fate.NODE_LOST, Fate.REQUEUED} and job.failed_nodes:
        node = job.failed_nodes[0]
        return End(fate=Fate.NODE_LOST, why=f"Node {node} of Slurm job {job.id} failed.", node=node)
    fate = Fate.REPORTED if seen.fate is Fate.TAKEN and job.stopped else seen.fate
    if fate is Fate.REPORTED:
        return End(fate=fate) if reports.complete(job.nodes) else _without_reports(job, reports)
    if fate is Fate.TAKEN and not reports.started:
        return End(fate=Fate.NOT_STARTED, why=seen.why)
    return End(fate=fate, why=seen.why)


def end_of_forgotten(job: Job, reports: Reports) -> End:
    """Return how an attempt ended whose job Slurm does not know any more."""
    if reports.requeued:
        return End(fate=Fate.REQUEUED, why=f"Slurm job {job.id} was put back into the queue.")
    if reports.complete(job.nodes):
        return End(fate=Fate.REPORTED)
    silent = listed(reports.silent(job.nodes))
    why = f"Slurm does not know job {job.id} any more (MinJobAge), and {silent} left no report of its end."
    return End(fate=Fate.LOST, why=why)


def _without_reports(job: Job, reports: Reports) -> End:
    if not reports.started:
        hint = f"its last line: {job.said}" if job.said else INVISIBLE.format(folder=job.folder)
        why = f"Slurm job {job.id} ended before any of its programs started; {hint}"
        return End(fate=Fate.NOT_STARTED, why=why)
    silent = listed(reports.silent(job.nodes))
    if not reports.supervised:
        return End(
            fate=Fate.NOT_STARTED,
            why=f"srun of Slurm job {job.id} started nothing on {silent}: {job.said or 'no output'}",
        )
    why = f"The supervisor on {silent} ended without a report, so it is unknown how its ranks ended."
    return End(fate=Fate.LOST, why=why)
