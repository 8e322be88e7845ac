"""The reports of a job's nodes, read from the shared folder and merged into the exit report of the attempt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.contract.paths import AttemptPaths
from worker.executors.base import RankProcess, RankUse
from worker.executors.slurm.orders import read_quickly


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """What the nodes of an attempt have written so far."""

    hosts: Sequence[str]
    """Names of the nodes, from the program on the first one; empty until it has started."""
    ends: Mapping[int, Mapping[str, Any]]
    """Node -> its exit report, for those that have ended."""
    started: bool
    """Whether a program of the job has left a trace in the folder."""
    requeued: bool
    """Whether Slurm started the job a second time."""
    supervised: bool
    """Whether a supervisor has begun on any node."""

    def complete(self, nodes: int) -> bool:
        """Whether all nodes have ended."""
        return len(self.ends) == nodes

    def well(self, nodes: int) -> bool:
        """Whether all nodes have ended and every rank with exit code 0."""
        ranks = [rank for report in self.ends.values() for rank in report["ranks"]]
        return self.complete(nodes) and bool(ranks) and all(rank["exit_code"] == 0 for rank in ranks)

    def name(self, number: int) -> str:
        """Return the name of a node."""
        return self.hosts[number] if number < len(self.hosts) else f"node {number}"

    def silent(self, nodes: int) -> list[str]:
        """Return the names of the nodes without a report."""
        return [self.name(number) for number in range(nodes) if number not in self.ends]


def read_reports(paths: AttemptPaths, nodes: int) -> Reports:
    """Read what is there."""
    ends = {number: read_quickly(paths.node(number).exit) for number in range(nodes)}
    head = read_quickly(paths.nodes / "head.json")
    return Reports(
        hosts=[str(host) for host in head.get("hosts", [])],
        ends={number: report for number, report in ends.items() if "ranks" in report},
        started=bool(head),
        supervised=any(paths.node(number).shim.exists() for number in range(nodes)),
        requeued=bool(read_quickly(paths.nodes / "requeued.json")),
    )


def merge(reports: Reports, marker: str) -> dict[str, Any]:
    """Return the exit report of the attempt; ranks of nodes without a report are left out.

    A launcher that fails after its ranks have started has lost the node with the rendezvous: a consequence of what
    ended that node, and no launch error.
    """
    ends = [reports.ends[number] for number in sorted(reports.ends)]
    ranks = sorted((rank for report in ends for rank in report["ranks"]), key=lambda rank: int(rank["rank"]))
    firsts = [report["first"] for report in ends if report.get("first")]
    stops = [report["stop"] for report in ends]
    killed = [stop["killed_at"] for stop in stops if stop["killed_at"] is not None]
    errors = [
        f"{reports.name(number)}: {report['launch_error']}" if len(reports.ends) > 1 else report["launch_error"]
        for number, report in sorted(reports.ends.items())
        if report["launch_error"] and not report["ranks"]
    ]
    return {
        "schema_version": 1,
        "marker": marker,
        "started_at": min((report["started_at"] for report in ends), default=0.0),
        "finished_at": max((report["finished_at"] for report in ends), default=0.0),
        "main": _main(ends),
        "ranks": ranks,
        "first": min(firsts, key=lambda first: float(first["at"]), default=None),
        "launch_error": errors[0] if errors else None,
        "stop": {
            "cause": next((stop["cause"] for stop in stops if stop["cause"]), None),
            "asked": any(stop["asked"] for stop in stops),
            "killed_at": min(killed, default=None),
            "processes_ended": sum(stop["processes_ended"] for stop in stops),
            "processes_left": sum(stop["processes_left"] for stop in stops),
        },
        "oom_kills": sum(report["oom_kills"] for report in ends),
        "nodes": [
            {"node": reports.name(number), "main": report["main"], "stop": report["stop"]}
            for number, report in sorted(reports.ends.items())
        ],
    }


def _main(ends: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how the launchers ended: the first one that failed, else the first one."""
    mains = [report["main"] for report in ends]
    failed = [main for main in mains if main["exit_code"] != 0]
    chosen = min(failed, key=lambda main: main["ended_at"] or 0.0) if failed else mains[0] if mains else {}
    return dict(chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The ranks of an attempt as their supervisors last saw them."""

    ranks: Mapping[int, RankProcess]
    usage: Mapping[int, RankUse]


def read_processes(paths: AttemptPaths, nodes: int, known: Sequence[int]) -> Processes:
    """Read the ranks that live; a rank in `known`, seen earlier, that no node mentions any more has ended."""
    ranks = {rank: RankProcess(alive=False) for rank in known}
    usage = {}
    for number in range(nodes):
        for name, state in read_quickly(paths.node(number).state).get("ranks", {}).items():
            rank = int(name)
            ranks[rank] = RankProcess(alive=True, stopped=bool(state["stopped"]))
            if state["cpu_seconds"] is not None:
                usage[rank] = RankUse(cpu_seconds=state["cpu_seconds"], rss_bytes=state["rss_bytes"])
    return Processes(ranks=ranks, usage=usage)
