"""Reports of nodes, merged into the exit report of the attempt."""

import json
from pathlib import Path
from typing import Any

from trainer.contract.paths import AttemptPaths
from worker.executors.slurm.orders import Ending, Orders, read_ending, read_orders, write_ending, write_orders
from worker.executors.slurm.reports import merge, read_processes, read_reports


def end(rank: int, *, code: int | None = 0, at: float = 10.0, **known: Any) -> dict[str, Any]:
    entry = {"rank": rank, "local_rank": 0, "pid": 100 + rank, "exit_code": code, "signal": None, "died_at": at}
    stop = {"cause": None, "asked": False, "killed_at": None, "processes_ended": 0, "processes_left": 0}
    return {
        "started_at": 1.0 + rank,
        "finished_at": at + 1,
        "main": {"pid": 50 + rank, "exit_code": code, "signal": None, "ended_at": at + 0.5},
        "ranks": [entry],
        "first": {"rank": rank, "at": at},
        "launch_error": None,
        "stop": {**stop, **known.pop("stop", {})},
        "oom_kills": 0,
        **known,
    }


def attempt(tmp_path: Path, *ends: dict[str, Any] | None, hosts: tuple[str, ...] = ("a", "b")) -> AttemptPaths:
    paths = AttemptPaths(tmp_path / "1" / "train" / "attempt_1")
    for number, document in enumerate(ends):
        paths.node(number).folder.mkdir(parents=True)
        paths.node(number).exit.write_text(json.dumps(document or {}))
    (paths.nodes / "head.json").write_text(json.dumps({"job_id": 7, "hosts": hosts}))
    return paths


def test_two_nodes_that_ended_well(tmp_path: Path) -> None:
    reports = read_reports(attempt(tmp_path, end(1), end(0)), 2)
    assert reports.well(2)
    document = merge(reports, "m")
    assert [entry["rank"] for entry in document["ranks"]] == [0, 1]
    assert (document["main"]["exit_code"], document["launch_error"]) == (0, None)
    assert [item["node"] for item in document["nodes"]] == ["a", "b"]


def test_first_failure_of_all_nodes_is_named(tmp_path: Path) -> None:
    stop = {"cause": "rank_death", "killed_at": 12.0, "processes_ended": 2}
    reports = read_reports(attempt(tmp_path, end(0, code=1, at=10.4, stop=stop), end(1, code=3, at=10.1)), 2)
    assert (reports.complete(2), reports.well(2)) == (True, False)
    document = merge(reports, "m")
    assert document["first"] == {"rank": 1, "at": 10.1}
    assert document["main"]["pid"] == 51
    assert (document["stop"]["cause"], document["stop"]["processes_ended"]) == ("rank_death", 2)


def test_launch_error_names_its_node(tmp_path: Path) -> None:
    reports = read_reports(attempt(tmp_path, end(0), {**end(1, launch_error="no torch"), "ranks": []}), 2)
    assert merge(reports, "m")["launch_error"] == "b: no torch"


def test_launcher_that_lost_its_rendezvous_is_no_launch_error(tmp_path: Path) -> None:
    lost = end(1, code=None, launch_error="RendezvousConnectionError: the store is gone", at=10.5)
    document = merge(read_reports(attempt(tmp_path, end(0, code=3), lost), 2), "m")
    assert document["launch_error"] is None
    assert document["first"]["rank"] == 0


def test_missing_report_is_no_success(tmp_path: Path) -> None:
    reports = read_reports(attempt(tmp_path, end(0), None), 2)
    assert (reports.complete(2), reports.well(2), reports.silent(2)) == (False, False, ["b"])
    assert [entry["rank"] for entry in merge(reports, "m")["ranks"]] == [0]


def test_no_ranks_are_no_success(tmp_path: Path) -> None:
    assert not read_reports(attempt(tmp_path, {**end(0), "ranks": []}, hosts=("a",)), 1).well(1)


def test_processes_of_all_nodes(tmp_path: Path) -> None:
    paths = attempt(tmp_path, None, None)
    state = {"stopped": False, "cpu_seconds": 1.5, "rss_bytes": 4096}
    paths.node(0).state.write_text(json.dumps({"ranks": {"0": state}}))
    paths.node(1).state.write_text(json.dumps({"ranks": {"1": {**state, "stopped": True}}}))
    seen = read_processes(paths, 2, [])
    assert (seen.ranks[0].stopped, seen.ranks[1].stopped) == (False, True)
    assert seen.usage[1].rss_bytes == 4096
    paths.node(1).state.write_text(json.dumps({"ranks": {}}))
    later = read_processes(paths, 2, list(seen.ranks))
    assert (later.ranks[0].alive, later.ranks[1].alive) == (True, False)


def test_orders_travel_and_a_torn_file_orders_nothing(tmp_path: Path) -> None:
    write_orders(tmp_path, Orders(stop=True, stacks=2, kill_at=5.5))
    write_ending(tmp_path, Ending(failed="b"))
    assert read_orders(tmp_path) == Orders(stop=True, stacks=2, kill_at=5.5)
    assert read_ending(tmp_path).failed == "b"
    (tmp_path / "orders.json").write_text('{"stop": tr')
    assert read_orders(tmp_path) == Orders()
