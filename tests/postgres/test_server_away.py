"""A server that stops in the middle of a run: pages say so, nothing is lost, and the run succeeds when it returns."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.settings import Settings
from tests.support.postgres import Server, running_server
from tests.support.service import messages, running_service
from tests.support.waiting import until
from tests.support.worker_lab import ROOT, Lab

STEPS = 60


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def own() -> Iterator[Server]:
    """A server that only this test uses."""
    with running_server() as running:
        running.prepare()
        yield running


@pytest.fixture
def lab(own: Server, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path, database_url=own.url(own.fresh()), warm_start=False)
    yield made
    made.close()


def written(lab: Lab, run_id: int) -> list[str]:
    """Return the event lines in the files of the ranks, sorted."""
    root = lab.paths(run_id).attempt("stage-1", 1)
    return sorted(line for rank in range(2) for line in root.events(rank).read_text().splitlines())


@pytest.mark.torchrun
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_run_survives_the_server(own: Server, lab: Lab, how: signal.Signals) -> None:
    lab.worker()
    run_id = lab.submit(steps=STEPS, step_seconds=0.2)
    lab.rank_at_step(run_id, 1, 3)
    own.stop(how=how)
    before = len(written(lab, run_id))
    lab.until(lambda: len(written(lab, run_id)) > before + 60, "events while the server is away")
    lab.until(lambda: "database-busy" in log_of(lab), "a line of the worker that says so")
    own.start()
    run = lab.finished(run_id)
    assert (run.state, run.reason, run.verdict) == ("succeeded", "completed", "pass")
    stored = lab.events(run_id)
    assert [event.id for event in stored] == list(range(1, len(stored) + 1))
    assert sorted(event.line for event in stored) == written(lab, run_id)
    assert len(written(lab, run_id)) > 2 * 2 * STEPS
    assert lab.history(run_id) == ["queued", "starting", "running", "succeeded"]
    assert [attempt.attempt for attempt in lab.attempts(run_id)] == [1]
    assert "Traceback" not in log_of(lab)


def log_of(lab: Lab) -> str:
    return (lab.settings.data_dir / "worker.log").read_text(errors="replace")


def test_pages_say_why_and_recover(own: Server, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, database_url=own.url(own.fresh()))
    with running_service(settings) as service:
        body = {"kind": "token-parity", "params": {"device": "cpu"}}
        run_id = service.post("/runs", body).json()["id"]
        own.stop()
        for path in ("/", f"/runs/{run_id}", "/status", "/trends", "/api/v1/runs", f"/api/v1/runs/{run_id}/events"):
            answer = service.http.get(path, headers={"Accept": "text/html"})
            if path == "/status":
                assert (answer.status_code, "cannot be reached" in answer.text) == (200, True)
                continue
            assert answer.status_code == 503, path
            assert "the database server cannot be reached" in answer.text or "starting or stopping" in answer.text
            assert "Traceback" not in answer.text
            assert "s3cret" not in answer.text
        refused = service.post("/runs", body)
        assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")
        assert refused.headers["Retry-After"] == "5"
        assert service.http.get("/readyz").status_code == 503
        own.start()
        assert service.get("/runs").json()["items"][0]["id"] == run_id
        assert len(service.get("/runs").json()["items"]) == 1
        assert service.post("/runs", body).status_code == 201


def test_streams_go_on_afterwards(own: Server, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, database_url=own.url(own.fresh()))
    with running_service(settings) as service:
        run_id = service.post("/runs", {"kind": "token-parity", "params": {"device": "cpu"}}).json()["id"]
        with service.http.stream("GET", f"/api/v1/runs/{run_id}/stream") as response:
            stream = messages(response)
            assert next(stream).type == "state"
            own.stop()
            own.start()
            assert service.post(f"/runs/{run_id}/cancel").status_code == 202
            assert [message.type for message in stream] == ["state", "end"]


def command(*arguments: str, data_dir: Path, url: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "DDP_AUDIT_DATABASE_URL": url, "DDP_AUDIT_DATA_DIR": str(data_dir)}
    argv = [sys.executable, "-m", "app.cli.main", *arguments]
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        ("mysql://u:hidden@h/d", 2, "'mysql' is not supported"),
        ("postgresql+asyncpg://u:hidden@h/d", 2, "'postgresql+asyncpg' is not supported"),
        ("no address hidden", 2, "is not the address of a database"),
        ("postgresql+psycopg://u:hidden@h:port/d", 2, "is not the address of a database"),
        ("postgresql+psycopg://u:hidden@h", 2, "names no database"),
        ("sqlite://", 2, "names no database"),
        ("{unreachable}", 3, "Connection refused"),
        ("{nowhere}", 3, "does not exist"),
        ("{password}", 3, "password authentication failed"),
        ("{encoding}", 2, "has encoding SQL_ASCII"),
    ],
)
def test_wrong_addresses_are_told(server: Server, tmp_path: Path, given: str, code: int, told: str) -> None:
    if given == "{encoding}":
        server.execute("DROP DATABASE IF EXISTS odd")
        server.execute("CREATE DATABASE odd TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'")
    url = {
        "{unreachable}": f"postgresql+psycopg://u:hidden@127.0.0.1:{free_port()}/d",
        "{nowhere}": server.url("nowhere"),
        "{password}": server.url("migrated", password="hidden"),
        "{encoding}": server.url("odd"),
    }.get(given, given)
    for arguments in (["list"], ["serve", "--port", "0"]):
        done = command(*arguments, data_dir=tmp_path, url=url)
        assert done.returncode == code, (arguments, done)
        assert told in done.stderr
        assert "hidden" not in done.stderr.replace(given, "")
        assert "Traceback" not in done.stderr


def test_backup_names_the_servers_own_tool(server: Server, tmp_path: Path) -> None:
    done = command("backup", str(tmp_path / "b.tar"), data_dir=tmp_path, url=server.url(server.fresh()))
    assert done.returncode == 2
    assert "pg_dump" in done.stderr
    assert not (tmp_path / "b.tar").exists()


@pytest.mark.torchrun
def test_served_audit_on_a_server(server: Server, tmp_path: Path) -> None:
    """The product as a whole: `serve` with its worker, a real run of two ranks, its stream and its verdict."""
    port = free_port()
    environment = {**os.environ, "DDP_AUDIT_DATABASE_URL": server.url(server.fresh(empty=True)), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "app.cli.main", "serve", "--port", str(port), "--data-dir", str(tmp_path)]
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:

            def ready() -> bool:
                try:
                    return client.get("/readyz").status_code == 200
                except httpx.TransportError:
                    assert process.poll() is None, (tmp_path / "serve.log").read_text()
                    return False

            until(ready, "a ready service", 120)
            document: dict[str, Any] = {"kind": "token-parity", "preset": "quick", "params": {"device": "cpu"}}
            run_id = client.post("/api/v1/runs", json=document).json()["id"]
            with client.stream("GET", f"/api/v1/runs/{run_id}/stream", timeout=240) as response:
                found = list(messages(response))
            run = client.get(f"/api/v1/runs/{run_id}").json()
            page = client.get(f"/runs/{run_id}", headers={"Accept": "text/html"})
            events = client.get(f"/api/v1/runs/{run_id}/events?limit=1000").json()["items"]
            export = client.get(f"/api/v1/runs/{run_id}/export?format=json")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
    assert (run["state"], run["verdict"]) == ("succeeded", "pass"), (tmp_path / "serve.log").read_text()
    assert found[-1].type == "end"
    streamed = [message.data["id"] for message in found if message.type == "event"]
    assert streamed == [event["id"] for event in events] == list(range(1, len(events) + 1))
    assert page.status_code == 200
    assert len(json.loads(export.content)["events"]) == len(events)
    assert not (tmp_path / "ddp-audit.db").exists()
