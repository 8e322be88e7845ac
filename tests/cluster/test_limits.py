"""Limits that Slurm enforces on real nodes: time, memory, and GPUs, which only Slurm hands out."""

import re
import signal
from typing import Any, Final

import pytest

from tests.cluster.rig import GPUS, NODES, Cluster, memory_is_limited
from tests.cluster.test_ends import job_of
from tests.support.worker_lab import Lab

pytestmark = [pytest.mark.torchrun, pytest.mark.timeout(400)]
LONG: Final[dict[str, Any]] = {"steps": 6000, "step_seconds": 0.05}
SHORT: Final[dict[str, Any]] = {"steps": 10, "step_seconds": 0.02}


def test_gpus_are_handed_out_until_the_time_is_up(lab: Lab, cluster: Cluster) -> None:
    """A run with all GPUs and a limit of one minute, and two that want GPUs meanwhile."""
    lab.worker()
    launch = {"nodes": 2, "gres": f"gpu:{GPUS}", "time_limit": "1", "account": "physics"}
    first = lab.submit(**LONG, world_size=4, launch=launch)
    for rank in range(4):
        lab.rank_at_step(first, rank, 2)
    job = job_of(lab, first)
    shown = cluster.call("scontrol", "--details", "--oneliner", "show", "job", str(job))
    assert f"JOB_GRES=gpu:{GPUS * len(NODES)} " in shown
    assert set(re.findall(r" GRES=gpu:(\d+)\(IDX:", shown)) == {str(GPUS)}  # on each node
    assert (cluster.job(job)["Account"], cluster.job(job)["TimeLimit"]) == ("physics", "00:01:00")
    later = lab.submit(**SHORT, launch={"gres": "gpu:1"})
    impossible = lab.submit(**SHORT, launch={"gres": f"gpu:{GPUS + 1}"})
    without = lab.submit(**SHORT)
    lab.until(lambda: "(Resources)" in lab.run(later).waiting_for, "that the second run waits for GPUs")
    refused = lab.finished(impossible)
    assert (refused.state, refused.reason) == ("failed", "launch_error"), refused.diagnosis
    assert "launch.gres" in refused.diagnosis
    assert lab.finished(without).state == "succeeded"  # it needs no GPU
    assert (lab.run(first).state, lab.run(later).state) == ("running", "starting")
    run = lab.finished(first, 150)
    assert (run.state, run.reason) == ("failed", "time_limit"), run.diagnosis
    assert "time limit (launch.time_limit, or the partition's)" in run.diagnosis
    assert cluster.job(job)["JobState"] == "TIMEOUT"
    assert lab.processes(first) == []
    second = lab.finished(later)
    assert (second.state, second.waiting_for) == ("succeeded", ""), second.diagnosis


@pytest.mark.skipif(not memory_is_limited(), reason="control groups of version 1 are needed to limit memory")
@pytest.mark.parametrize("lab", [{"slurm_arguments": "--mem=1500M"}], indirect=True)
def test_memory_limit_is_told_from_a_kill(lab: Lab) -> None:
    lab.worker()
    greedy = lab.submit(**LONG, launch={"nodes": 2}, acts={"1": "memory:4096"})
    run = lab.finished(greedy)
    node = next(row.node for row in lab.ranks(greedy) if row.rank == 1)
    assert (run.state, run.reason) == ("failed", "out_of_memory"), run.diagnosis
    assert run.failure is not None
    assert (run.failure["rank"], run.failure["node"], run.failure["signal"]) == (1, node, signal.SIGKILL)
    killed = lab.finished(lab.submit(**LONG, launch={"nodes": 2}, acts={"1": "signal:9"}))
    assert (killed.state, killed.reason) == ("failed", "rank_signal"), killed.diagnosis
    assert lab.finished(lab.submit(**SHORT, launch={"nodes": 2})).state == "succeeded"  # within the limit
