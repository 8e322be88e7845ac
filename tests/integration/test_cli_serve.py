"""`ddp-audit serve` as a process: start, signals, its worker, and what it does when it cannot start."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from app.db import create_database_engine
from app.schema import migrate
from app.settings import Settings
from tests.support.cli import start
from tests.support.pages_data import add_run
from tests.support.service import messages


@contextmanager
def serving(data_dir: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Start a service on a free port and yield its process and address once it listens."""
    process = start("serve", "--port", "0", *arguments, data_dir=data_dir)
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if "serves http" in line)
        yield process, line.split("serves ")[1].split("/ (")[0]
    finally:
        process.terminate()  # not a kill: the worker beside it must go, too
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def until_ready(url: str, path: str = "/healthz", seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if httpx.get(url + path, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    pytest.fail(f"{path} was not ready within {seconds} s")


def test_interrupt_ends_open_streams(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    migrate(settings)
    engine = create_database_engine(settings)
    run_id = add_run(engine, "running", moves=("starting",))
    engine.dispose()
    with serving(tmp_path, "--no-worker") as (process, url):
        until_ready(url)
        with httpx.Client(timeout=30) as client:
            streams = [f"{url}/api/v1/runs/{run_id}/stream", f"{url}/runs/{run_id}/live"]
            with client.stream("GET", streams[0]) as api, client.stream("GET", streams[1]) as page:
                arriving, lines = messages(api), page.iter_lines()
                next(arriving), next(lines)
                began = time.monotonic()
                process.send_signal(signal.SIGINT)
                assert process.wait(10) == 130
                assert time.monotonic() - began < 5


def test_second_interrupt_leaves_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, "--no-worker") as (process, url):
        until_ready(url)
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            # A request that never ends would hold the service for its whole grace.
            slow.sendall(b"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n"
                         b"Content-Type: application/json\r\n\r\n{")  # fmt: skip
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            assert process.poll() is None
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130
            assert time.monotonic() - began < 1.5


def test_worker_lives_and_ends_with_the_service(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, url):
        until_ready(url, "/readyz")
        worker = psutil.Process(httpx.get(f"{url}/readyz").json()["workers"][0]["pid"])
        assert worker.ppid() == process.pid
        assert os.getsid(worker.pid) == worker.pid  # Ctrl-C in a terminal does not reach it
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert "libtorch" not in maps
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        assert not worker.is_running()


def workers_of(process: "subprocess.Popen[str]") -> set[int]:
    children = psutil.Process(process.pid).children()
    return {child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE}


def test_killed_worker_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, _):
        first = workers_of(process)
        assert len(first) == 1
        os.kill(next(iter(first)), signal.SIGKILL)
        deadline = time.monotonic() + 30
        while not (now := workers_of(process)) or now & first:
            assert time.monotonic() < deadline, "no other worker came"
            time.sleep(0.1)
        assert len(now) == 1


def test_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start("serve", "--port", str(taken.getsockname()[1]), data_dir=tmp_path)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "cannot listen on 127.0.0.1 port" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("host", ["0.0.0.0", "198.51.100.7", "some.host"])
def test_open_host_needs_a_token(tmp_path: Path, host: str) -> None:
    process = start("serve", "--host", host, "--port", "0", "--no-worker", data_dir=tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "DDP_AUDIT_TOKEN" in errors
