"""The service killed or interrupted: jobs are not affected, streams end, and the next service duplicates nothing."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlmodel import col, select

from app.db import read_session
from app.runs.models import RunHistory
from app.runs.workers import live_workers
from tests.support.worker_lab import ROOT, Lab, open_lab

LONG: dict[str, Any] = {"launcher": "python", "steps": 120, "step_seconds": 0.05}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with open_lab(tmp_path) as lab:
        yield lab
        for worker in _workers(lab):
            worker.send_signal(signal.SIGKILL)


class _Foreign:
    """A worker that a killed service has left behind."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def _workers(lab: Lab) -> list[_Foreign]:
    with read_session(lab.engine) as session:
        found = [_Foreign(row.pid) for row in live_workers(session)]
    return [item for item in found if Path(f"/proc/{item.pid}").exists()]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def serve(lab: Lab, *arguments: str, port: int | None = None) -> tuple["subprocess.Popen[bytes]", str]:
    port = port or free_port()
    with (lab.settings.data_dir / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "app.cli.main", "serve", "--port", str(port), *arguments],
            cwd=ROOT,
            env=lab.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    lab.workers.append(process)
    base = f"http://127.0.0.1:{port}"
    lab.until(lambda: answers(base), "the service")
    return process, base


def answers(base: str) -> bool:
    try:
        return httpx.get(f"{base}/healthz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def most_at_once(lab: Lab) -> int:
    with read_session(lab.engine) as session:
        moves = [row.target for row in session.exec(select(RunHistory).order_by(col(RunHistory.at)))]
    active, most = 0, 0
    for target in moves:
        active += {"starting": 1, "succeeded": -1, "failed": -1, "lost": -1}.get(target, 0)
        most = max(most, active)
    return most


def test_killed_web_is_noticed_by_nobody(lab: Lab) -> None:
    web, _ = serve(lab, "--no-worker")
    lab.worker()
    run_id = lab.submit(**LONG)
    lab.rank_at_step(run_id, 0, 2)
    web.kill()
    web.wait()
    assert lab.finished(run_id).verdict == "pass"
    assert lab.history(run_id) == ["queued", "starting", "running", "succeeded"]
    lab.assert_events_complete(run_id)


def test_worker_left_by_killed_service_doubles_nothing(lab: Lab) -> None:
    service, _ = serve(lab)
    runs = [lab.submit(launcher="python", steps=60, step_seconds=0.05) for _ in range(2)]
    lab.rank_at_step(runs[0], 0, 2)
    service.kill()
    service.wait()
    serve(lab)
    for run_id in runs:
        assert lab.finished(run_id).state == "succeeded"
        assert lab.history(run_id).count("starting") == 1
    assert most_at_once(lab) == 1


def test_interrupt_ends_streams_and_leaves_jobs(lab: Lab) -> None:
    service, base = serve(lab)
    run_id = lab.submit(**LONG)
    lab.rank_at_step(run_id, 0, 2)
    lines: list[str] = []
    whole = threading.Event()

    def follow() -> None:
        with httpx.stream("GET", f"{base}/api/v1/runs/{run_id}/stream", timeout=60) as response:
            for line in response.iter_lines():
                lines.append(line)
        whole.set()  # a stream that is cut off raises

    reader = threading.Thread(target=follow)
    reader.start()
    lab.until(lambda: any(line.startswith("data:") for line in list(lines)), "the stream begins")
    service.send_signal(signal.SIGINT)
    service.wait(60)
    assert lab.processes(run_id)  # it did not wait for the job
    assert lab.run(run_id).state == "running"
    reader.join(60)
    assert whole.is_set()
    lab.worker()
    assert lab.finished(run_id).state == "succeeded"
    lab.assert_events_complete(run_id)
