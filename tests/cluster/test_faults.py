"""A cluster that refuses, does not answer, or lacks what a job needs: said on the run, nothing lost, recovered from."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.rig import PROGRAMS, Cluster
from tests.support.worker_lab import Lab
from worker.executors.slurm.commands import NEEDED

pytestmark = [pytest.mark.torchrun, pytest.mark.timeout(400)]
SHORT: dict[str, Any] = {"steps": 10, "step_seconds": 0.02}
LONG: dict[str, Any] = {"steps": 100, "step_seconds": 0.1}


def test_runs_wait_until_the_programs_are_installed(lab: Lab, cluster: Cluster, tmp_path: Path) -> None:
    lab.worker(PATH=str(tmp_path))
    run_id = lab.submit(**SHORT)
    lab.until(lambda: "sbatch" in lab.run(run_id).waiting_for, "that sbatch is missing")
    assert lab.run(run_id).state == "queued"
    for name in NEEDED:
        (tmp_path / name).symlink_to(str(shutil.which(name, path=cluster.environment["PATH"])))
    assert lab.finished(run_id).state == "succeeded"


def test_silent_controller_costs_no_run(lab: Lab, cluster: Cluster) -> None:
    lab.worker()
    run_id = lab.submit(**LONG)
    lab.rank_at_step(run_id, 0, 3)
    cluster.end("slurmctld", signal.SIGKILL)
    try:
        lab.until(lambda: "does not answer" in lab.run(run_id).waiting_for, "that Slurm does not answer")
        later = lab.submit(**SHORT)
        lab.until(lambda: "does not answer" in lab.run(later).waiting_for, "that the second run waits for Slurm")
        assert (lab.run(run_id).state, lab.run(later).state) == ("running", "queued")
        step = lab.rank_at_step(run_id, 0, 10).step
        assert step is not None  # its files still arrive
    finally:
        cluster.start("slurmctld")
    for number in (run_id, later):
        run = lab.finished(number)
        assert (run.state, run.verdict) == ("succeeded", "pass"), run.diagnosis
    lab.assert_events_complete(run_id)


def test_requests_that_cannot_be_met_say_which_field_is_wrong(lab: Lab) -> None:
    lab.worker()
    refused: list[tuple[dict[str, Any], str]] = [
        ({"partition": "nowhere"}, "launch.partition"),
        ({"gres": "nic:2"}, "launch.gres"),
        ({"partition": "blind"}, "the nodes must see that folder"),
    ]
    waiting: list[tuple[dict[str, Any], str]] = [
        ({"nodes": 4}, "launch.nodes"),
        ({"cpus_per_rank": 64}, "launch.nodes"),
    ]
    ended = {lab.submit(**SHORT, world_size=4, launch=launch): expected for launch, expected in refused}
    pending = {lab.submit(**SHORT, world_size=4, launch=launch): expected for launch, expected in waiting}
    for run_id, expected in ended.items():
        run = lab.finished(run_id)
        assert (run.state, run.reason) == ("failed", "launch_error"), run.diagnosis
        assert expected in run.diagnosis
    for run_id, expected in pending.items():  # nodes may be added, or return
        lab.until(lambda number=run_id, word=expected: word in lab.run(number).waiting_for, "the reason to wait")  # type: ignore[misc]
        lab.cancel(run_id)
        assert lab.finished(run_id).state == "cancelled"


def test_reason_to_wait_is_shown(lab: Lab, cluster: Cluster) -> None:
    filler = cluster.call("sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 100")
    lab.worker()
    run_id = lab.submit(**SHORT)
    lab.until(lambda: "(Resources)" in lab.run(run_id).waiting_for, "the reason to wait")
    assert lab.run(run_id).state == "starting"
    cluster.call("scancel", filler.strip())
    assert lab.finished(run_id).state == "succeeded"
    assert lab.run(run_id).waiting_for == ""


def test_worker_that_dies_after_sbatch_does_not_submit_twice(lab: Lab, cluster: Cluster, tmp_path: Path) -> None:
    for name in (*NEEDED, *PROGRAMS):
        if not (tmp_path / name).exists():
            (tmp_path / name).symlink_to(str(shutil.which(name, path=cluster.environment["PATH"])))
    real = (tmp_path / "sbatch").readlink()
    (tmp_path / "sbatch").unlink()
    (tmp_path / "sbatch").write_text(f'#!/bin/sh\n{real} "$@" >/dev/null\nkill -9 $PPID\n')
    (tmp_path / "sbatch").chmod(0o755)
    first = lab.worker(PATH=f"{tmp_path}:{cluster.environment['PATH']}")
    run_id = lab.submit(**SHORT)
    assert first.wait(60) == -signal.SIGKILL
    assert lab.attempts(run_id)[-1].reference is None
    lab.worker()
    run = lab.finished(run_id)
    assert (run.state, run.verdict) == ("succeeded", "pass"), run.diagnosis
    name = f"ddp-audit.{run_id}.stage-1.1.{lab.database_id[:12]}"
    jobs = cluster.call("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%i").split()
    assert lab.attempts(run_id)[-1].reference == {"job": int(jobs[0]), "name": name}
    assert len(jobs) == 1
