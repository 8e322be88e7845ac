"""What the worker knows of the cluster: whether Slurm answers, its version, and its partitions."""

import socket
from typing import Any, Final

from trainer.contract.placement import Offer
from worker.executors.slurm.commands import NEEDED, Programs, Unavailable
from worker.executors.slurm.listing import listed, read_partitions
from worker.log import log

NAME: Final = "slurm"


class Cluster:
    """The devices of this executor: the nodes of a cluster, which Slurm gives to jobs."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._document: dict[str, Any] = self._describe("Slurm has not been asked yet")
        self._changed = True

    @property
    def document(self) -> dict[str, Any]:
        """The published devices; `problem` says why no run can start."""
        return self._document

    def poll(self) -> bool:
        """Return whether there is anything new."""
        changed, self._changed = self._changed, False
        return changed

    def offer(self) -> Offer:
        """Return that Slurm finds the nodes, and what keeps jobs from being submitted."""
        return Offer(scheduler=NAME, problem=str(self._document["problem"]))

    def busy(self) -> dict[int, str]:
        """Return nothing: Slurm knows which GPUs are in use."""
        return {}

    def look(self) -> None:
        """Ask Slurm for its partitions; called by the executor's thread."""
        missing = self._programs.missing()
        partitions: list[dict[str, Any]] = []
        problem = ""
        if missing:
            problem = (
                f"{listed(missing)} not found on the PATH of the worker: Slurm's programs ({listed(NEEDED)}) must be "
                "installed on its machine, or DDP_AUDIT_EXECUTOR be local"
            )
        else:
            try:
                answer = self._programs.call("scontrol", "--oneliner", "show", "partition")
                partitions = read_partitions(answer.out)
                problem = "" if answer.code == 0 else f"scontrol failed: {answer.text[:300]}"
            except Unavailable as error:
                problem = f"Slurm does not answer: {error}"
        self.note(problem, partitions)

    def note(self, problem: str, partitions: list[dict[str, Any]] | None = None) -> None:
        """Publish a problem, or that there is none; without `partitions` the known ones are kept."""
        known = self._document["partitions"] if partitions is None or problem else partitions
        document = self._describe(problem, known)
        if document != self._document:
            if problem != self._document["problem"]:
                log.info("the state of Slurm changed", action="slurm-state", problem=problem)
            self._document, self._changed = document, True

    def _describe(self, problem: str, partitions: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        return {
            "host": socket.gethostname(),
            "scheduler": NAME,
            "gpus": [],
            "problem": problem,
            "partitions": partitions or [],
        }
