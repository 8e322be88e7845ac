"""Calls Slurm's own programs: with a clean environment, a time limit, and a name for what went wrong."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.environment import for_children
from app.places import module_environment
from worker.executors.slurm.listing import FIELDS, SlurmJob, read_accounting, read_jobs

NEEDED: Final = ("sbatch", "squeue", "scancel", "scontrol", "srun")
"""`scontrol` because the hosts of a job are taken from `scontrol show hostnames`, never from the list of nodes."""
CALL_SECONDS: Final = 30.0
KEPT: Final = ("SLURM_CONF",)
"""Where the clients find their cluster; no other SLURM_ variable may reach a submission."""
PREFIX: Final = re.compile(r"^(?:squeue|scontrol|scancel|sacct): (?:error|fatal): ", re.MULTILINE)
UNAVAILABLE: Final = re.compile(
    r"unable to contact slurm|socket timed out|connect failure|connection refused|zero bytes|in standby|"
    r"configuration source|temporarily unable|munge|protocol authentication|unexpected message|"
    r"transport endpoint|slurm_persist|controller is",
    re.IGNORECASE,
)
"""Messages of a Slurm that does not answer, in contrast to one that refuses."""


class Unavailable(Exception):
    """Slurm does not answer at the moment; the text says how that shows."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Outcome of one program."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """What the program said, on one line."""
        return " ".join(PREFIX.sub("", self.err or self.out).split())


def client_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Slurm's programs, and of jobs: no secrets, nothing from a surrounding allocation."""
    kept = {name: environment[name] for name in KEPT if name in environment}
    return module_environment({**for_children(environment), **kept})


class Programs:
    """Slurm's programs on this machine."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = client_environment(environment)

    def has(self, name: str) -> bool:
        """Whether a program is on the PATH."""
        return shutil.which(name, path=self.environment.get("PATH")) is not None

    def missing(self) -> list[str]:
        """Return the programs that are needed and not on the PATH."""
        return [name for name in NEEDED if not self.has(name)]

    def call(self, *argv: str, extra: Mapping[str, str] | None = None) -> Answer:
        """Run a program to its end. Raises Unavailable if it is missing or Slurm does not answer."""
        try:
            done = subprocess.run(
                argv,
                env={**self.environment, **(extra or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CALL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{argv[0]} did not end within {CALL_SECONDS:g} seconds") from None
        except OSError as error:
            raise Unavailable(f"{argv[0]} cannot be started: {error.strerror or error}") from None
        answer = Answer(done.returncode, done.stdout, done.stderr)
        if answer.code != 0 and UNAVAILABLE.search(answer.text):
            raise Unavailable(answer.text[:300])
        return answer

    def jobs(self) -> list[SlurmJob]:
        """Return this user's jobs, including those that ended a few minutes ago. Raises Unavailable."""
        form = ",".join(f"{name}:|" for name in FIELDS)
        # SLURM_TIME_FORMAT is for the client alone: seconds instead of local time.
        answer = self.call(
            "squeue", "--me", "--noheader", "--states=all", f"--Format={form}", extra={"SLURM_TIME_FORMAT": "%s"}
        )
        if answer.code != 0:
            raise Unavailable(f"squeue failed: {answer.text[:300]}")
        return read_jobs(answer.out)

    def accounting(self, job_id: int) -> str:
        """Return the state of a job that squeue has forgotten; empty without accounting."""
        if not self.has("sacct"):
            return ""
        try:
            argv = ("--noheader", "--parsable2", "--allocations", f"--jobs={job_id}", "--format=State")
            return read_accounting(self.call("sacct", *argv).out)
        except Unavailable:
            return ""

    def submit(self, arguments: Sequence[str]) -> Answer:
        """Call sbatch. Raises Unavailable."""
        return self.call("sbatch", *arguments)

    def cancel(self, job_id: int, *options: str) -> None:
        """Call scancel; a job that has already ended is left alone. Raises Unavailable."""
        self.call("scancel", *options, str(job_id))

    def failed_nodes(self, hosts: Sequence[str]) -> list[str]:
        """Return which of the nodes are down. Raises Unavailable."""
        if not hosts:
            return []
        answer = self.call("scontrol", "--oneliner", "show", "node", ",".join(hosts))
        found = re.findall(r"NodeName=(\S+).*? State=(\S+)", answer.out)
        return [name for name, state in found if re.search(r"DOWN|FAIL|NOT_RESPONDING", state)]
