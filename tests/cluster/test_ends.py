"""How jobs on real nodes end, and what the runs say about it."""

import json
import signal
from typing import Any

import pytest

from tests.cluster.rig import NODES, Cluster
from tests.support.worker_lab import Lab

pytestmark = [pytest.mark.torchrun, pytest.mark.timeout(400)]
LONG: dict[str, Any] = {"steps": 600, "step_seconds": 0.05, "launch": {"nodes": 2}}


def job_of(lab: Lab, run_id: int) -> int:
    """Return the number of the job of a run's current attempt."""

    def found() -> dict[str, Any] | None:
        return next((row.reference for row in lab.attempts(run_id) if row.state == "running"), None)

    return int(lab.until(found, "the number of the job")["job"])


def under_way(lab: Lab, **given: Any) -> tuple[int, int]:
    """Start a long run, wait until both ranks train, and return the run and its job."""
    run_id = lab.submit(**{**LONG, **given})
    for rank in (0, 1):
        lab.rank_at_step(run_id, rank, 3)
    return run_id, job_of(lab, run_id)


def test_cancel_ends_the_job_and_every_process(lab: Lab, cluster: Cluster) -> None:
    first = lab.worker()
    run_id, job = under_way(lab)
    assert lab.processes(run_id)
    first.kill()
    first.wait()
    lab.worker()  # finds the job by its number
    lab.cancel(run_id)
    run = lab.finished(run_id)
    assert (run.state, run.reason) == ("cancelled", "cancelled_by_user")
    assert lab.processes(run_id) == []
    cluster.until(lambda: cluster.job(job)["JobState"] == "CANCELLED", "the end of the job in Slurm")


def test_job_cancelled_by_somebody_else_is_told_apart(lab: Lab, cluster: Cluster) -> None:
    lab.worker()
    run_id, job = under_way(lab, launch={})
    cluster.call("scancel", str(job))
    run = lab.finished(run_id)
    assert (run.state, run.reason) == ("failed", "rank_signal"), run.diagnosis
    assert "somebody else" in run.diagnosis


def test_preempted_job_is_told_apart(lab: Lab, cluster: Cluster) -> None:
    lab.worker()
    run_id, _ = under_way(lab, launch={})
    cluster.call("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 60")
    run = lab.finished(run_id)
    assert (run.state, run.reason) == ("failed", "preempted"), run.diagnosis


def test_failed_rank_is_named_with_its_node(lab: Lab) -> None:
    lab.worker()
    run_id = lab.submit(**{**LONG, "acts": {"1": "exit:3"}})
    run = lab.finished(run_id)
    node = next(row.node for row in lab.ranks(run_id) if row.rank == 1)
    assert (run.state, run.reason) == ("failed", "rank_exit"), run.diagnosis
    assert run.failure is not None
    assert (run.failure["rank"], run.failure["node"], run.failure["exit_code"]) == (1, node, 3)
    assert f"Rank 1 on {node} failed first" in run.diagnosis
    ends = json.loads(lab.paths(run_id).attempt("stage-1", 1).exit.read_text())
    assert [entry["node"] for entry in ends["nodes"]] == list(NODES)


@pytest.mark.parametrize("lab", [{"hang_seconds": 4.0, "stall_seconds": 2.0}], indirect=True)
def test_stopped_rank_is_named_with_its_node_and_others_leave_stacks(lab: Lab) -> None:
    lab.worker()
    run_id = lab.submit(**{**LONG, "acts": {"1": "signal:19"}})
    run = lab.finished(run_id)
    node = {row.rank: row.node for row in lab.ranks(run_id)}
    assert (run.state, run.reason) == ("failed", "hang"), run.diagnosis
    assert f"Rank 1 on {node[1]} holds up the run: it is stopped" in run.diagnosis
    assert run.failure is not None
    assert run.failure["node"] == node[1]
    assert lab.paths(run_id).attempt("stage-1", 1).stacks(0).stat().st_size > 0


def test_planned_kills_reach_both_nodes(lab: Lab) -> None:
    lab.worker()
    # Nine seconds, so that a busy worker does not come too late for the kill.
    run_id = lab.submit(kills=1, steps=60, step_seconds=0.15, save_every=5, launch={"nodes": 2})
    run = lab.finished(run_id, 200)
    assert (run.state, run.verdict) == ("succeeded", "pass"), run.diagnosis
    assert [(row.stage, row.state) for row in lab.attempts(run_id)] == [
        ("calm", "succeeded"),
        ("killed", "killed"),
        ("killed", "succeeded"),
    ]
    ends = json.loads(lab.paths(run_id).attempt("killed", 1).exit.read_text())
    assert [rank["signal"] for rank in ends["ranks"]] == [signal.SIGKILL, signal.SIGKILL]


def test_resume_stays_bit_exact_across_a_requeue(lab: Lab, cluster: Cluster) -> None:
    lab.worker()
    run_id = lab.submit("resume", "quick", save_every=2, launch={"nodes": 2})
    cluster.until(lambda: _step(lab, run_id, "continuous") >= 4, "a step of the uninterrupted training", 100)
    first = job_of(lab, run_id)
    cluster.call("scontrol", "requeue", str(first))
    run = lab.finished(run_id, 360)
    assert (run.state, run.verdict) == ("succeeded", "pass"), run.diagnosis
    found = [(row.attempt, row.state) for row in lab.attempts(run_id) if row.stage == "continuous"]
    assert found == [(1, "requeued"), (2, "succeeded")]
    jobs = {row.reference["job"] for row in lab.attempts(run_id) if row.reference}
    assert len(jobs) == len(lab.attempts(run_id))
    cluster.until(lambda: cluster.job(first)["JobState"] == "CANCELLED", "the withdrawal of the first job")


def _step(lab: Lab, run_id: int, stage: str) -> int:
    return max((row.step or 0 for row in lab.ranks(run_id) if row.stage == stage and not row.exit_code), default=0)


def test_lost_node_ends_the_run_truthfully(lab: Lab, cluster: Cluster) -> None:
    lab.worker()
    run_id, _ = under_way(lab)
    victims = {row.rank: row.pid for row in lab.ranks(run_id) if row.node == "node2"}
    cluster.lose("node2")
    try:
        run = lab.finished(run_id, 120)
    finally:
        cluster.start("node2")
        cluster.until(lambda: cluster.ready("node2"), "the return of the node")
    assert (run.state, run.reason) == ("lost", "node_failure"), run.diagnosis
    assert run.failure is not None
    assert (run.failure["node"], run.failure["rank"]) == ("node2", next(iter(victims)))
    assert "Node node2 of Slurm job" in run.diagnosis
