"""The job of one attempt: its name, the arguments of sbatch, the script, and the plan for its nodes. Pure."""

import shlex
import sys
from dataclasses import dataclass
from typing import Any, Final

from app.settings import Settings
from worker.plan import AttemptPlan

HEAD: Final = "worker.executors.slurm.head"
NAME_ID: Final = 12
"""Characters of the database's identity in the name of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What the operator has set for every job."""

    partition: str = ""
    account: str = ""
    time_limit: str = ""
    cpus_per_rank: int = 1
    setup: str = ""
    """Lines of shell that come first in the script."""
    interpreter: str = sys.executable
    """Runs the batch script's own program, which calls srun: never in a container."""
    python: tuple[str, ...] = (sys.executable,)
    """Runs the supervisors and ranks."""
    arguments: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> "Defaults":
        """Read them. Raises OSError if the file with the set-up lines cannot be read."""
        return cls(
            partition=settings.slurm_partition,
            account=settings.slurm_account,
            time_limit=settings.slurm_time_limit,
            cpus_per_rank=settings.slurm_cpus_per_rank,
            setup="" if settings.slurm_setup is None else settings.slurm_setup.read_text(),
            python=settings.slurm_python or (sys.executable,),
            arguments=settings.slurm_arguments,
        )


def job_name(plan: AttemptPlan) -> str:
    """Return the name by which the job is found again, unique for run, stage and attempt of this database."""
    database = plan.marker.split(":", 1)[0]
    return f"ddp-audit.{plan.run_id}.{plan.stage}.{plan.attempt}.{database[:NAME_ID]}"


def cpus_per_node(plan: AttemptPlan, defaults: Defaults) -> int:
    """Return the CPUs that a node's step needs: those of all its ranks."""
    per_rank = int(plan.launch.get("cpus_per_rank") or defaults.cpus_per_rank)
    return per_rank * (plan.ranks // plan.nodes)


def sbatch_arguments(plan: AttemptPlan, defaults: Defaults) -> list[str]:
    """Return the arguments of sbatch; as arguments they need no quoting and win over variables and directives."""
    launch = plan.launch
    wanted = {
        "partition": launch.get("partition") or defaults.partition,
        "account": launch.get("account") or defaults.account,
        "time": str(launch.get("time_limit") or defaults.time_limit),
        "gres": launch.get("gres"),
    }
    return [
        "--parsable",
        f"--job-name={job_name(plan)}",
        f"--nodes={plan.nodes}",
        f"--ntasks={plan.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={cpus_per_node(plan, defaults)}",
        f"--chdir={plan.cwd}",
        f"--output={_pattern(str(plan.paths.shim_log))}",
        "--open-mode=append",
        "--requeue",
        "--export=ALL",
        *(f"--{name}={value}" for name, value in wanted.items() if value),
        *defaults.arguments,
        str(script_path(plan)),
    ]


def script_path(plan: AttemptPlan) -> Any:
    """Return where the script of the job is kept."""
    return plan.paths.root / "job.sh"


def _pattern(path: str) -> str:
    """Escape a path for `--output`, where % introduces a replacement."""
    return path.replace("\\", "\\\\").replace("%", "%%")


def job_script(plan: AttemptPlan, defaults: Defaults) -> str:
    """Return the batch script, which runs on the first node."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in sorted(plan.environment.items())]
    program = shlex.join([defaults.interpreter, "-m", HEAD, str(plan.paths.root)])
    return "\n".join(
        [
            "#!/bin/bash",
            f"# ddp-audit: run {plan.run_id}, stage {plan.stage}, attempt {plan.attempt}",
            *([defaults.setup.rstrip("\n")] if defaults.setup else []),
            *exports,
            f"exec {program}",
            "",
        ]
    )


def node_plan(plan: AttemptPlan, defaults: Defaults) -> dict[str, Any]:
    """Return `plan.json`: what every node of the job has to start."""
    return {
        "marker": plan.marker,
        "launcher": plan.launcher,
        "nodes": plan.nodes,
        "ranks": plan.ranks // plan.nodes,
        "cpus": cpus_per_node(plan, defaults),
        "command": list(plan.command),
        "environment": dict(plan.environment),
        "cwd": str(plan.cwd),
        "grace_seconds": plan.grace_seconds,
        "python": list(defaults.python),
    }
