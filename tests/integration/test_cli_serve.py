"""`ddp-audit serve` as a process: start, signals, its worker, and failures to start."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from app.db import create_database_engine
from app.schema import migrate
from app.settings import Settings
from tests.support.cli import environment, start
from tests.support.pages_data import add_run
from tests.support.service import messages, running_service
from tests.support.waiting import until

PATIENT = "from app.cli import main, server; server.GRACE_SECONDS = 600; main.main()"
"""The command with a grace period so long that waiting for it is distinguishable from stopping at once."""


def start_patient(*arguments: str, data_dir: Path) -> "subprocess.Popen[str]":
    """Start a command as `start` does, with a long grace."""
    argv = [sys.executable, "-c", PATIENT, *arguments]
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(data_dir, {})
    )


@contextmanager
def serving(
    data_dir: Path, *arguments: str, begin: Callable[..., "subprocess.Popen[str]"] = start
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Start a service on a free port and yield its process and address once it listens."""
    process = begin("serve", "--port", "0", *arguments, data_dir=data_dir)
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if "serves http" in line)
        yield process, line.split("serves ")[1].split("/ (")[0]
    finally:
        process.terminate()  # not a kill: its worker must end, too
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def until_ready(url: str, path: str = "/healthz", seconds: float = 60) -> None:
    until(lambda: status_of(url + path) == 200, f"{path} is ready", seconds)


def status_of(url: str) -> int | None:
    """Return the status of an answer, None if there is no answer."""
    try:
        return httpx.get(url, timeout=60).status_code
    except httpx.TransportError:
        return None


def test_answers_name_no_server_program(tmp_path: Path) -> None:
    with serving(tmp_path, "--no-worker") as (_, url):
        until_ready(url)
        answer = httpx.get(f"{url}/healthz")
        assert answer.status_code == 200
        assert "date" in answer.headers
        assert "server" not in answer.headers
    with running_service(Settings(data_dir=tmp_path)) as service:  # without our configuration it would be present
        assert service.http.get("/healthz").headers["server"] == "uvicorn"


def test_interrupt_ends_open_streams(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    migrate(settings)
    engine = create_database_engine(settings)
    run_id = add_run(engine, "running", moves=("starting",))
    engine.dispose()
    with serving(tmp_path, "--no-worker", begin=start_patient) as (process, url):
        until_ready(url)
        with httpx.Client(timeout=60) as client:
            streams = [f"{url}/api/v1/runs/{run_id}/stream", f"{url}/runs/{run_id}/live"]
            with client.stream("GET", streams[0]) as api, client.stream("GET", streams[1]) as page:
                arriving, lines = messages(api), page.iter_lines()
                next(arriving), next(lines)
                process.send_signal(signal.SIGINT)
                for stream in (arriving, lines):  # a stream that is cut off raises
                    assert sum(1 for _ in stream) >= 0
        assert process.wait(60) == 130


def test_second_interrupt_leaves_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, "--no-worker", begin=start_patient) as (process, url):
        until_ready(url)
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as slow:
            # A request that never ends blocks the service for its whole grace period.
            slow.sendall(b"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n"
                         b"Content-Type: application/json\r\nExpect: 100-continue\r\n\r\n")  # fmt: skip
            assert slow.recv(4096).startswith(b"HTTP/1.1 100")  # the service waits for its body
            process.send_signal(signal.SIGINT)
            until(lambda: status_of(f"{url}/healthz") is None, "no new request is accepted")
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130


def test_worker_lives_and_ends_with_the_service(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, url):
        until_ready(url, "/readyz")
        worker = psutil.Process(httpx.get(f"{url}/readyz").json()["workers"][0]["pid"])
        assert worker.ppid() == process.pid
        assert os.getsid(worker.pid) == worker.pid  # Ctrl-C in a terminal does not reach it
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert "libtorch" not in maps
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not worker.is_running()


def workers_of(process: "subprocess.Popen[str]") -> set[int]:
    children = psutil.Process(process.pid).children()
    return {child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE}


def test_killed_worker_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, _):
        first = workers_of(process)
        assert len(first) == 1
        os.kill(next(iter(first)), signal.SIGKILL)
        now = until(lambda: workers_of(process) - first, "another worker")
        assert len(now) == 1


def test_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start("serve", "--port", str(taken.getsockname()[1]), data_dir=tmp_path)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "cannot listen on 127.0.0.1 port" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("host", ["0.0.0.0", "198.51.100.7", "some.host"])
def test_open_host_needs_a_token(tmp_path: Path, host: str) -> None:
    process = start("serve", "--host", host, "--port", "0", "--no-worker", data_dir=tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "DDP_AUDIT_TOKEN" in errors
