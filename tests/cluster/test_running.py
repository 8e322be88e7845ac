"""Runs on two real nodes: every kind, worlds of 2 to 8 ranks, and what is shown of the nodes."""

import json
import re
from typing import Any

import pytest

from tests.cluster.rig import Cluster
from tests.support.worker_lab import Lab

pytestmark = [pytest.mark.torchrun, pytest.mark.timeout(400)]
FOREIGN = {
    "SLURM_JOB_ID": "77",
    "SLURM_CPUS_PER_TASK": "1",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "2",
    "SRUN_CPUS_PER_TASK": "3",
    "SBATCH_PARTITION": "nowhere",
    "RANK": "3",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "10.255.255.1",
    "TORCHELASTIC_RUN_ID": "x",
}
"""What a worker inherits that is started inside an allocation and under another launcher."""


@pytest.mark.parametrize(
    ("kind", "ranks", "nodes"), [("cifar", 2, 2), ("token-parity", 8, 2), ("gradient-audit", 4, 2)]
)
def test_kinds_pass_on_two_nodes(lab: Lab, kind: str, ranks: int, nodes: int) -> None:
    lab.worker()
    run_id = lab.submit(kind, "quick", world_size=ranks, launch={"nodes": nodes})
    run = lab.finished(run_id, 250)
    assert (run.state, run.verdict) == ("succeeded", "pass"), run.diagnosis
    last = max((row.stage for row in lab.attempts(run_id) if len(_ranks(lab, run_id, row.stage)) == ranks), default="")
    placed = _ranks(lab, run_id, last)
    assert sorted(row.local_rank for row in placed) == sorted(list(range(ranks // nodes)) * nodes)
    assert {row.node for row in placed} == {"node1", "node2"}
    said = json.loads(lab.paths(run_id).result.read_text())["limits"]
    assert any("on 2 nodes (node1, node2)" in line for line in said), said
    assert not any("one machine" in line for line in said), said
    lab.assert_events_complete(run_id)


def _ranks(lab: Lab, run_id: int, stage: str) -> list[Any]:
    return [row for row in lab.ranks(run_id) if row.stage == stage]


def test_step_has_the_cpus_of_all_its_ranks(lab: Lab, cluster: Cluster) -> None:
    lab.worker(**FOREIGN)
    run_id = lab.submit(
        steps=400, step_seconds=0.05, world_size=4, launch={"nodes": 2, "ranks_per_node": 2, "cpus_per_rank": 2}
    )
    for rank in range(4):
        lab.rank_at_step(run_id, rank, 2)
    job = _job(lab, run_id)
    step = cluster.call("scontrol", "--oneliner", "show", "step", f"{job}.0")
    found = re.search(r"Nodes=(\d+) CPUs=(\d+) Tasks=(\d+)", step)
    assert found is not None, step
    assert found.groups() == ("2", "8", "2")  # four CPUs on each node: two ranks with two
    assert cluster.job(job)["Partition"] == "main"
    assert not [event for event in lab.events(run_id) if event.type == "message" and "CPUs" in event.line]
    lab.cancel(run_id)
    assert lab.finished(run_id).state == "cancelled"


@pytest.mark.parametrize("lab", [{"slurm_arguments": "--cpus-per-task=1"}], indirect=True)
def test_too_few_cpus_are_a_warning_with_both_numbers(lab: Lab) -> None:
    lab.worker()
    run_id = lab.submit(steps=5, launch={"nodes": 2, "cpus_per_rank": 3})
    assert lab.finished(run_id).state == "succeeded"
    said = [event.line for event in lab.events(run_id) if event.type == "message"]
    assert sum("has 1 CPUs for 1 ranks that need 3" in line for line in said) == 2, said


def _job(lab: Lab, run_id: int) -> int:
    reference = lab.until(lambda: lab.attempts(run_id)[-1].reference, "the number of the job")
    return int(reference["job"])
