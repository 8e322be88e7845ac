"""Slurm's job states -> phase, fate and reason of an attempt: a pure table, used in one place."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from worker.executors.base import Fate, Phase
from worker.executors.slurm.listing import SlurmJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a job's state means for its attempt."""

    phase: Phase
    fate: Fate = Fate.REPORTED
    why: str = ""
    withdraw: bool = False
    """Whether the job must be cancelled: it will never run, or another attempt takes its place."""


RUNNING: Final = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING"})
PAUSED: Final = frozenset({"SUSPENDED", "STOPPED"})
WAITING: Final = frozenset({"PENDING", "CONFIGURING", "RESV_DEL_HOLD"})
REQUEUED: Final = frozenset({"REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
ENDS: Final[Mapping[str, tuple[Fate, str]]] = {
    "COMPLETED": (Fate.REPORTED, ""),
    "FAILED": (Fate.REPORTED, ""),
    "CANCELLED": (Fate.TAKEN, "was cancelled in Slurm by somebody else, not by this service"),
    "REVOKED": (Fate.TAKEN, "was revoked in Slurm, because another cluster runs it"),
    "TIMEOUT": (Fate.TIMED_OUT, "was ended by Slurm at its time limit (launch.time_limit, or the partition's)"),
    "DEADLINE": (Fate.TIMED_OUT, "was ended by Slurm at its deadline"),
    "OUT_OF_MEMORY": (Fate.OUT_OF_MEMORY, "was ended by Slurm, which recorded that a process was out of memory"),
    "NODE_FAIL": (Fate.NODE_LOST, "was ended by Slurm because a node failed"),
    "BOOT_FAIL": (Fate.NODE_LOST, "was ended by Slurm because a node did not boot"),
    "PREEMPTED": (Fate.PREEMPTED, "was preempted by Slurm for another job"),
}
"""Final states: what happened, and the sentence about it."""
PENDING: Final[Mapping[str, str]] = {
    "": "it was just submitted",
    "Resources": "it waits for free nodes",
    "Priority": "jobs with a higher priority are ahead of it",
    "BeginTime": "its earliest start has not come yet",
    "JobHeldUser": "it is held by a user; `scontrol release` ends that",
    "JobHeldAdmin": "it is held by an administrator",
    "Licenses": "it waits for a licence",
    "Reservation": "it waits for a reservation",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "NodeDown": "a node that it needs is down",
    "PartitionNodeLimit": "its partition has fewer nodes that are up than launch.nodes",
    "PartitionConfig": (
        "its partition has no nodes that are up for launch.nodes, launch.cpus_per_rank, launch.gres and "
        "launch.time_limit as given"
    ),
}
"""Reasons to wait that Slurm may lift by itself, in plain words."""
HOPELESS: Final[Mapping[str, str]] = {
    "PartitionTimeLimit": "launch.time_limit is over the limit of the partition: give less, or another partition",
    "BadConstraints": "no node fits launch.nodes, launch.cpus_per_rank and launch.gres: give less",
    "InvalidAccount": "launch.account is not valid",
    "AccountNotAllowed": "launch.account may not use the partition",
    "InvalidQOS": "the quality of service of the job is not valid",
    "QOSNotAllowed": "the quality of service of the job may not use the partition",
    "launch_failed_requeued_held": "Slurm could not launch it on its node; the log of slurmd there says why",
    "DependencyNeverSatisfied": "it depends on a job that failed",
}
"""Reasons that only another request, or an administrator, can remove."""


def meaning_of(job: SlurmJob) -> Seen:
    """Return what a job's state means for the attempt that was submitted as it."""
    who = f"Slurm job {job.id}"
    if job.reason in HOPELESS and job.state in WAITING | REQUEUED:
        why = f"{who} cannot start ({job.reason}): {HOPELESS[job.reason]}"
        return Seen(phase=Phase.ENDED, fate=Fate.NOT_STARTED, why=why, withdraw=True)
    if job.state in REQUEUED or job.restarts > 0:
        why = f"{who} was ended by Slurm and put back into its queue."
        return Seen(phase=Phase.ENDED, fate=Fate.REQUEUED, why=why, withdraw=True)
    if job.state in ENDS:
        fate, how = ENDS[job.state]
        return Seen(phase=Phase.ENDED, fate=fate, why=f"{who} {how}." if how else "")
    return Seen(phase=Phase.RUNNING) if job.state in RUNNING else Seen(phase=Phase.WAITING, why=_why_waiting(job, who))


def _why_waiting(job: SlurmJob, who: str) -> str:
    if job.state in PAUSED:
        return f"{who} is suspended in Slurm"
    if job.state == "CONFIGURING":
        return f"{who}: its nodes are being prepared"
    why = PENDING.get(job.reason, "")
    told = f" ({job.reason})" if job.reason else ""
    return f"{who} is {job.state.lower() or 'unknown'}{told}{f': {why}' if why else ''}"
