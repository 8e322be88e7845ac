"""The worker killed, stopped or doubled, the machine restarted, the database locked: no run lies or starts twice."""

import errno
import json
import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import col, select

from app.host import processes
from app.host.processes import Identity
from app.runs.models import RunHistory
from tests.support.worker_lab import Lab, open_lab
from trainer.contract.placement import Offer
from worker.executors.local.executor import LocalExecutor
from worker.executors.local.handle import LocalHandle
from worker.loop import Worker
from worker.plan import AttemptPlan

LONG: dict[str, Any] = {"launcher": "python", "steps": 100, "step_seconds": 0.05}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with open_lab(tmp_path) as lab:
        yield lab


def kill(worker: "subprocess.Popen[bytes]") -> None:
    worker.kill()
    worker.wait()


@pytest.mark.torchrun
def test_killed_worker_is_succeeded_by_next(lab: Lab) -> None:
    first = lab.worker()
    run_id = lab.submit(steps=60, step_seconds=0.1, meeting="files", stages=2)
    lab.rank_at_step(run_id, 0, 3)
    kill(first)
    alive = {process.pid for process in lab.processes(run_id)}
    lab.worker()
    run = lab.finished(run_id)
    assert (run.state, run.verdict) == ("succeeded", "pass")
    assert alive
    assert run.worker_id is not None
    assert [(row.stage, row.attempt, row.state) for row in lab.attempts(run_id)] == [
        ("stage-1", 1, "succeeded"),
        ("stage-2", 1, "succeeded"),
    ]
    assert lab.history(run_id) == ["queued", "starting", "running", "succeeded"]
    lab.assert_events_complete(run_id)


def test_job_that_ended_meanwhile_is_read(lab: Lab) -> None:
    first = lab.worker()
    run_id = lab.submit(launcher="python", steps=20, step_seconds=0.05)
    lab.rank_at_step(run_id, 0, 2)
    kill(first)
    lab.until(lambda: not lab.processes(run_id), "the end of the job without a worker")
    assert lab.run(run_id).state == "running"
    lab.worker()
    assert lab.finished(run_id).verdict == "pass"
    lab.assert_events_complete(run_id)


def test_worker_killed_at_every_moment(lab: Lab) -> None:
    run_id = lab.submit(launcher="python", steps=10, step_seconds=0.02, stages=3)

    def known() -> tuple[Any, ...]:
        attempts = [(row.stage, row.attempt, row.state) for row in lab.attempts(run_id)]
        return lab.run(run_id).state, attempts, bool(lab.events(run_id))

    moments = [known()]
    while moments[-1][0] != "succeeded":  # each worker is killed as soon as it has moved the run or a stage
        lab.worker()
        lab.until(lambda: known() != moments[-1], "something new")
        kill(lab.workers[-1])
        moments.append(known())
    assert 5 <= len(moments) <= 30
    assert all(row.attempt == 1 for row in lab.attempts(run_id))
    lab.assert_events_complete(run_id)


def test_cancel_survives_the_worker(lab: Lab) -> None:
    first = lab.worker()
    run_id = lab.submit(**LONG, acts={"0": "deaf"})
    lab.until(lambda: len(lab.processes(run_id)) >= 4, "a deaf rank")
    lab.cancel(run_id)
    kill(first)
    lab.worker()
    assert lab.finished(run_id).state == "cancelled"
    assert not lab.processes()


def test_term_leaves_the_job_running(lab: Lab) -> None:
    first = lab.worker()
    run_id = lab.submit(**LONG)
    lab.rank_at_step(run_id, 0, 2)
    first.terminate()
    assert first.wait(60) == 0
    assert lab.processes(run_id)  # it did not wait for the job
    assert lab.run(run_id).state == "running"
    lab.worker()
    assert lab.finished(run_id).state == "succeeded"
    lab.assert_events_complete(run_id)


def test_restarted_machine_touches_no_innocent(lab: Lab) -> None:
    first = lab.worker()
    run_id = lab.submit(**LONG)
    lab.rank_at_step(run_id, 0, 2)
    kill(first)
    for process in lab.processes(run_id):
        process.send(signal.SIGKILL)
    innocent = subprocess.Popen(["sleep", "60"])
    try:
        paths = lab.paths(run_id).attempt("stage-1", 1)
        paths.exit.unlink(missing_ok=True)
        identity = Identity.of(innocent.pid)
        assert identity is not None
        shim = {**json.loads(paths.shim.read_text()), "pid": innocent.pid, "start": identity.start, "boot": "earlier"}
        paths.shim.write_text(json.dumps(shim))
        lab.worker()
        run = lab.finished(run_id)
        assert (run.state, run.reason) == ("lost", "node_failure")
        assert "restarted" in run.diagnosis
        # The same pid in this boot, started at another time: gone, not alive.
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_two_workers_never_share_a_run(lab: Lab) -> None:
    runs = [lab.submit(launcher="python", steps=3) for _ in range(6)]
    lab.worker()
    lab.worker()
    for run_id in runs:
        assert lab.finished(run_id).state == "succeeded"
        assert lab.history(run_id).count("starting") == 1
        assert [row.attempt for row in lab.attempts(run_id)] == [1]
        lab.assert_events_complete(run_id)
    assert most_at_once(lab) == 1


def most_at_once(lab: Lab) -> int:
    """Return the largest number of runs that were active at the same time."""
    moves = lab._rows(select(RunHistory).order_by(col(RunHistory.at)))
    active, most = 0, 0
    for row in moves:
        active += {"starting": 1, "succeeded": -1, "failed": -1}.get(row.target, 0)
        most = max(most, active)
    return most


def test_waiting_run_says_why(lab: Lab) -> None:
    lab.worker()
    first, second, third = lab.submit(**LONG), lab.submit(**LONG), lab.submit(**LONG)
    lab.until(lambda: lab.run(third).waiting_for, "a reason to wait")
    assert f"run {first}" in lab.run(second).waiting_for
    assert "MAX_CPU_RUNS" in lab.run(second).waiting_for
    assert f"run {second} is ahead" in lab.run(third).waiting_for


def test_cuda_without_gpus_is_refused(lab: Lab) -> None:
    lab.worker()
    run = lab.finished(lab.submit(device="cuda", launcher="python"))
    assert (run.state, run.reason) == ("failed", "no_devices")
    assert "Device cuda needs 2 GPUs for 2 ranks and 0 GPUs are visible." in run.diagnosis
    assert lab.history(run.id or 0) == ["queued", "failed"]


class BusyMachine:
    """Devices of a machine with two GPUs, one of them in use by another process."""

    taken = True
    document = None

    def poll(self) -> bool:
        return False

    def offer(self) -> Offer:
        return Offer(gpus=(0, 1))

    def busy(self) -> dict[int, str]:
        return {1: "process 4711"} if self.taken else {}


def test_busy_gpu_waits_with_why(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", lab.environment()["PYTHONPATH"])
    run_id = lab.submit(device="cuda", launcher="python")
    machine = BusyMachine()
    worker = Worker(lab.settings, executor=LocalExecutor(lab.settings, devices=machine))
    thread = threading.Thread(target=worker.run_forever)
    thread.start()
    try:
        lab.until(lambda: lab.run(run_id).waiting_for, "a reason to wait")
        assert lab.run(run_id).waiting_for == "1 of 2 GPUs are free, 2 are needed; in use: GPU 1 by process 4711"
        assert lab.run(run_id).state == "queued"
        machine.taken = False
        lab.until(lambda: lab.run(run_id).state != "queued", "the start on free GPUs")
        assert (lab.run(run_id).backend, lab.run(run_id).gpus) == ("nccl", [0, 1])
        lab.finished(run_id)
        assert lab.run(run_id).gpus == []
    finally:
        worker.stop()
        thread.join(20)
    assert not thread.is_alive()


def test_locked_database_fails_no_run(lab: Lab) -> None:
    stop = threading.Event()
    path = str(lab.settings.data_dir / "ddp-audit.db")

    def write() -> None:
        connection = sqlite3.connect(path, timeout=60, isolation_level=None)
        while not stop.is_set():
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE meta SET value = value WHERE key = 'database_id'")
            time.sleep(0.01)
            connection.execute("COMMIT")
            time.sleep(0.2)
        connection.close()

    writers = [threading.Thread(target=write) for _ in range(50)]
    for writer in writers:
        writer.start()
    try:
        lab.worker()
        run_id = lab.submit(launcher="python", steps=10)
        assert lab.finished(run_id, 200).state == "succeeded"
        lab.assert_events_complete(run_id)
    finally:
        stop.set()
        for writer in writers:
            writer.join()


def test_once_drains_the_queue(lab: Lab) -> None:
    runs = [lab.submit(launcher="python"), lab.submit(launcher="python", acts={"0": "raise"})]
    assert lab.worker("--once").wait(90) == 0
    assert [lab.run(run_id).state for run_id in runs] == ["succeeded", "failed"]


def test_single_run_passes_the_queue(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", lab.environment()["PYTHONPATH"])
    waiting, wanted = lab.submit(launcher="python"), lab.submit(launcher="python")
    turns: list[int] = []
    Worker(lab.settings).run_single(wanted, lambda: turns.append(1))
    assert lab.run(wanted).state == "succeeded"
    assert lab.run(waiting).state == "queued"
    assert len(turns) > 3


class FullDisk(LocalExecutor):
    """Starts nothing, as on a disk without space."""

    def start(self, plan: AttemptPlan) -> LocalHandle:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(plan.paths.plan))


def test_full_disk_leaves_the_worker_alive(lab: Lab) -> None:
    runs = [lab.submit(launcher="python") for _ in range(2)]
    Worker(lab.settings, executor=FullDisk(lab.settings)).run_once()
    for run_id in runs:
        run = lab.run(run_id)
        assert (run.state, run.reason) == ("failed", "disk_full")
        assert "Free some space" in run.diagnosis
        assert [row.state for row in lab.attempts(run_id)] == ["failed"]


def test_unwritable_folder_is_a_launch_error(lab: Lab) -> None:
    run_id = lab.submit(launcher="python")
    folder = lab.paths(run_id).root
    folder.mkdir(parents=True)
    (folder / "stage-1").symlink_to("/proc/self/fdinfo")  # nothing can be created there
    assert lab.worker("--once").wait(60) == 0
    assert (lab.run(run_id).state, lab.run(run_id).reason) == ("failed", "launch_error")


def test_job_dies_with_nobody_left_behind(lab: Lab) -> None:
    worker = lab.worker()
    run_id = lab.submit(**LONG)
    row = lab.rank_at_step(run_id, 0, 2)
    kill(worker)
    os.kill(lab.shim(run_id), signal.SIGKILL)
    lab.worker()
    run = lab.finished(run_id)
    assert (run.state, run.reason) == ("lost", "worker_lost")
    assert row.pid is not None
    found = processes.stat(row.pid)
    assert found is None or not found.alive
