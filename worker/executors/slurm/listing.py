"""Reads what Slurm's programs print: jobs, partitions, accounting records. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from trainer.contract.timelimit import seconds_of

FIELDS: Final = ("JobID", "State", "Reason", "RestartCnt", "StartTime", "Name")
"""Columns of squeue; the name is last because it may contain anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One job as squeue shows it."""

    id: int
    state: str
    """Slurm's word, such as PENDING."""
    reason: str = ""
    """Why it is pending, in Slurm's word; empty if there is none."""
    restarts: int = 0
    """How often Slurm has put it back into the queue."""
    since: float | None = None
    """Unix seconds of its start; for a pending job the expected one."""
    name: str = ""


def read_jobs(text: str) -> list[SlurmJob]:
    """Return the jobs in the output of squeue; lines of another form are skipped."""
    found = []
    for line in text.splitlines():
        parts = line.split("|", len(FIELDS) - 1)
        if len(parts) < len(FIELDS) or not parts[0].strip().isdigit():
            continue
        number, state, reason, restarts, since, name = (part.strip() for part in parts)
        found.append(
            SlurmJob(
                id=int(number),
                state=state.split()[0].upper() if state else "",
                reason="" if reason in {"None", "N/A", "(null)"} else reason,
                restarts=int(restarts) if restarts.isdigit() else 0,
                since=float(since) if since.isdigit() else None,
                name=name.removesuffix("|"),
            )
        )
    return found


def read_submission(text: str) -> int | None:
    """Return the job number in the output of `sbatch --parsable` (`77` or `77;cluster`), None if there is none."""
    lines = [line.split(";")[0].strip() for line in text.splitlines() if line.strip()]
    return int(lines[-1]) if lines and lines[-1].isdigit() else None


def read_accounting(text: str) -> str:
    """Return the newest state in the output of sacct, such as TIMEOUT; empty if there is none."""
    lines = [line.strip().split() for line in text.splitlines() if line.strip()]
    return lines[-1][0].upper() if lines else ""


def read_partitions(text: str) -> list[dict[str, Any]]:
    """Return name, default, nodes, max_seconds and state of each partition in `scontrol --oneliner show partition`."""
    found = []
    for line in text.splitlines():
        values = dict(re.findall(r"(\w+)=(\S*)", line))
        if "PartitionName" not in values:
            continue
        nodes = [int(values[name]) for name in ("TotalNodes", "MaxNodes") if values.get(name, "").isdigit()]
        found.append(
            {
                "name": values["PartitionName"],
                "default": values.get("Default") == "YES",
                "nodes": min(nodes, default=None),
                "max_seconds": seconds_of(values.get("MaxTime", "")),
                "state": values.get("State", ""),
            }
        )
    return found


def listed(names: Sequence[str]) -> str:
    """Return names as a list in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
