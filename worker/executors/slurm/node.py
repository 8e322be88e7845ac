"""The supervisor of one node of a job: `python -m worker.executors.slurm.node ATTEMPT_DIR GROUP`, started by srun.

The supervisor of the local executor, which in addition carries out the orders of the worker, reports its processes
every second, and waits for the ranks of the other nodes. Standard library only.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from app.environment import for_children
from app.host.processes import STOPPED_STATES, Identity, use_of
from trainer.contract.files import make_folder
from trainer.contract.paths import AttemptPaths, NodePaths
from worker.executors.local.shim import LONGEST_AFTER_DEATH, Shim
from worker.executors.slurm.orders import Orders, read_ending, read_orders, write_quickly

SERVE_SECONDS: Final = 0.2
REPORT_SECONDS: Final = 1.0
WARNING: Final = "DDP_AUDIT_WARNING"
"""A text that the first rank of a node reports as a message."""


class NodeShim(Shim):
    """One node of an attempt."""

    patience = 0.1

    def __init__(self, plan: dict[str, Any], paths: NodePaths) -> None:
        super().__init__(plan, paths)
        self.node = paths
        self._served_at = self._reported_at = 0.0
        self._done = Orders()
        self._killed_for = 0.0
        """The newest moment at which ranks were to be killed and were."""

    def _step(self) -> bool:
        moment = time.monotonic()
        if moment - self._served_at >= SERVE_SECONDS:
            self._served_at = moment
            self._serve()
        self._kill_on_time()
        if moment - self._reported_at >= REPORT_SECONDS:
            self._reported_at = moment
            self._report_processes()
        return super()._step()

    def _serve(self) -> None:
        orders = read_orders(self.node.nodes)
        if orders.stop:
            self.term_asked = True
        if orders.stacks > self._done.stacks:
            for rank, process in self.ranks.living():
                # Before the handler is installed, the signal would end the rank; the file shows that it is installed.
                if self.node.stacks(rank).exists():
                    process.send(signal.SIGUSR1)
        self._done = orders
        if self.cause is None and read_ending(self.node.nodes).failed:
            self._begin("rank_death", min(float(self.plan["grace_seconds"]), LONGEST_AFTER_DEATH))

    def _kill_on_time(self) -> None:
        left = self._done.kill_at - time.time()
        if self._done.kill_at > self._killed_for and left < 2 * self.patience:
            time.sleep(max(0.0, left))
            for _, process in self.ranks.living():
                process.send(signal.SIGKILL)
            self._killed_for = self._done.kill_at

    def _report_processes(self) -> None:
        ranks = {rank: _state_of(process) for rank, process in self.ranks.living()}
        try:
            write_quickly(self.node.state, {"at": time.time(), "ranks": ranks})
        except OSError:
            return  # a full disk ends the ranks, not their supervisor

    def _judge(self) -> None:
        ended_well = self.ranks.all_dead and not self.ranks.any_failed
        if ended_well and self.plan["nodes"] > 1 and self.main is not None and self.main.returncode is None:
            return  # the launcher waits for those of the other nodes
        super()._judge()

    def _left(self) -> list[Identity]:
        return self._descendants()


def _state_of(process: Identity) -> dict[str, Any]:
    found, use = process.stat(), use_of(process)
    return {
        "stopped": found is not None and found.state in STOPPED_STATES,
        "cpu_seconds": None if use is None else use[0],
        "rss_bytes": None if use is None else use[1],
    }


def node_argv(plan: Mapping[str, Any], group: Mapping[str, Any], number: int, name: str) -> list[str]:
    """Return the command of the plan; `trainer.launch` also gets this node's place in the group."""
    command = [str(word) for word in plan["command"]]
    if plan["launcher"] != "torchrun":
        return [sys.executable, *command]
    place = ["--node", str(number)]
    if plan["nodes"] > 1:
        place += ["--endpoint", group["endpoint"], "--local-addr", group["addresses"].get(name, name)]
    return [sys.executable, *command[:2], *place, *command[2:]]


def cpu_warning(environment: Mapping[str, str], usable: int, wanted: int, ranks: int) -> str:
    """Return a warning with both numbers if the step has fewer CPUs than its ranks need, else an empty text.

    `usable` CPUs count where Slurm does not give the number of those in the step.
    """
    on_node = environment.get("SLURM_CPUS_ON_NODE", "")
    have = int(on_node) if on_node.isdigit() else usable
    if have >= wanted:
        return ""
    name = environment.get("SLURMD_NODENAME", "this node")
    return f"{name} has {have} CPUs for {ranks} ranks that need {wanted} (launch.cpus_per_rank): they will be slow"


def main() -> int:
    """Supervise this node's part of the attempt."""
    attempt, group = AttemptPaths(Path(sys.argv[1])), json.loads(sys.argv[2])
    plan = json.loads(attempt.plan.read_text())
    name, hosts = os.environ.get("SLURMD_NODENAME", ""), group["hosts"]
    number = hosts.index(name) if name in hosts else int(os.environ["SLURM_NODEID"])
    paths = attempt.node(number)
    make_folder(paths.folder, within=paths.run)
    warning = cpu_warning(os.environ, len(os.sched_getaffinity(0)), int(plan["cpus"]), int(plan["ranks"]))
    # Ranks must not take the variables of the job for those of a launcher.
    environment = {**for_children(os.environ), **plan["environment"], **({WARNING: warning} if warning else {})}
    os.environ.clear()
    os.environ.update(environment)
    argv: Sequence[str] = node_argv(plan, group, number, name)
    return NodeShim({**plan, "argv": list(argv), "terminal": False, "python_path": ""}, paths).run()


if __name__ == "__main__":
    sys.exit(main())
