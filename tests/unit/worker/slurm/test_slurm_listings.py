"""What Slurm's programs print, and what is made of it."""

import pytest

from worker.executors.slurm.listing import (
    SlurmJob,
    read_accounting,
    read_jobs,
    read_partitions,
    read_submission,
)
from worker.executors.slurm.refusals import explain

FAILED = "sbatch: error: Batch job submission failed: "
SQUEUE = """\
77|RUNNING|None|0|1796054326|ddp-audit.3.train.1.0123456789ab|
78|PENDING|Resources|0|N/A|odd | name|
79|CANCELLED|None|2|1796054326|x|
12_[1-3]|PENDING|Priority|0|N/A|somebody's array|
nonsense
"""
PARTITION = (
    "PartitionName=main AllowGroups=ALL AllowAccounts=ALL AllocNodes=ALL Default=YES MaxNodes=UNLIMITED "
    "MaxTime=1-00:00:00 Nodes=node[1-2] State=UP TotalCPUs=8 TotalNodes=2 SelectTypeParameters=NONE\n"
    "PartitionName=long Default=NO MaxNodes=1 MaxTime=UNLIMITED State=DOWN TotalNodes=5\n"
)


def test_jobs_are_read_line_by_line() -> None:
    found = read_jobs(SQUEUE)
    assert found[0] == SlurmJob(id=77, state="RUNNING", since=1796054326.0, name="ddp-audit.3.train.1.0123456789ab")
    assert (found[1].reason, found[1].since, found[1].name) == ("Resources", None, "odd | name")
    assert [(job.id, job.restarts) for job in found] == [(77, 0), (78, 0), (79, 2)]


@pytest.mark.parametrize(
    ("text", "number"), [("77\n", 77), ("77;cluster\n", 77), ("a notice\n78\n", 78), ("", None), ("error", None)]
)
def test_number_of_a_new_job(text: str, number: int | None) -> None:
    assert read_submission(text) == number


def test_accounting_gives_the_newest_state() -> None:
    assert read_accounting("PREEMPTED\nCANCELLED by 1000\n") == "CANCELLED"
    assert read_accounting("\n") == ""


def test_partitions() -> None:
    assert read_partitions(PARTITION) == [
        {"name": "main", "default": True, "nodes": 2, "max_seconds": 86_400, "state": "UP"},
        {"name": "long", "default": False, "nodes": 1, "max_seconds": None, "state": "DOWN"},
    ]


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("sbatch: error: invalid partition specified: x\n" + FAILED + "Invalid", "launch.partition"),
        (FAILED + "Invalid account or account/partition combination specified", "launch.account"),
        (FAILED + "Requested time limit is invalid (missing or exceeds some limit)", "launch.time_limit"),
        (FAILED + "Node count specification invalid", "launch.nodes"),
        (FAILED + "Requested node configuration is not available", "launch.nodes"),
        (FAILED + "Invalid generic resource (gres) specification", "launch.gres"),
        ("sbatch: unrecognized option '--odd'", "DDP_AUDIT_SLURM_ARGUMENTS"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(said: str, field: str) -> None:
    text = explain(said)
    assert field in text
    assert "Batch job submission failed" not in text


def test_unknown_refusal_is_passed_on() -> None:
    assert explain("sbatch: error: the moon is full") == "Slurm refused the job: the moon is full"
    assert "without a message" in explain("")
