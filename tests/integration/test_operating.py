"""Monitoring: readiness with its minimum free disk, numbers for Prometheus, and a log without secrets."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from app.clock import now
from app.db import write_session
from app.environment import SECRETS
from app.runs.models import WorkerRow
from app.settings import Settings
from tests.support.ended import end_run
from tests.support.service import Service, running_service, shown
from tests.support.waiting import until
from trainer.contract.paths import AttemptPaths
from worker.executors.local.executor import LocalExecutor
from worker.plan import AttemptPlan


def add_worker(service: Service) -> None:
    with write_session(service.engine) as session:
        session.add(
            WorkerRow(
                id="w",
                pid=1,
                pid_start=1,
                boot_id="b",
                host="h",
                started_at=now(),
                heartbeat_at=now(),
                devices={"gpus": []},
            )
        )


@pytest.mark.parametrize(("floor", "status"), [(0, 200), (2**60, 503)])
def test_readiness_has_a_disk_floor(tmp_path: Path, floor: int, status: int) -> None:
    with running_service(Settings(data_dir=tmp_path, min_free_bytes=floor)) as service:
        assert service.http.get("/readyz").json()["code"] == "no_worker"
        add_worker(service)
        answer = service.http.get("/readyz")
        assert answer.status_code == status, answer.text
        assert [worker["pid"] for worker in answer.json()["workers"]] == [1]
        if status == 503:
            assert answer.json()["code"] == "disk_low"
            assert str(floor) in answer.json()["detail"]


def test_numbers_name_no_run(tmp_path: Path) -> None:
    with running_service(Settings(data_dir=tmp_path)) as service:
        run_id = end_run(service.engine, service.settings.runs_dir, payload=b"x" * 5000)
        for _ in range(2):
            assert service.get(f"/runs/{run_id}").status_code == 200
        assert service.get("/usage").json()["bytes"] > 5000
        text = shown(service.http, "/metrics")
    numbers = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}
    assert numbers['ddp_audit_free_bytes{directory="data"}'] > 0
    assert numbers["ddp_audit_run_bytes"] > 5000
    assert sum(value for name, value in numbers.items() if name.startswith("ddp_audit_webhook_deliveries")) == 1
    assert "run_id=" not in text
    assert f"/runs/{run_id}" not in text


def test_every_answer_has_a_number(tmp_path: Path) -> None:
    with running_service(Settings(data_dir=tmp_path, token="operators-token")) as service:
        answers = [service.http.get("/healthz"), service.get("/runs"), service.http.get("/static/none.css")]
        numbers = [answer.headers["x-request-id"] for answer in answers]
        assert [answer.status_code for answer in answers] == [200, 401, 404]
        assert len(set(numbers)) == 3


def asked(url: str) -> httpx.Response | None:
    """Return the answer to a request with a number, None while nothing listens."""
    try:
        return httpx.get(url, headers={"X-Request-ID": "seen-by-the-test"}, timeout=60)
    except httpx.TransportError:
        return None


def test_served_log_is_json_without_secrets(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    secret = "a-token-nobody-may-read"
    environment = {**os.environ, "DDP_AUDIT_DATA_DIR": str(tmp_path / "data"), "DDP_AUDIT_TOKEN": secret}
    argv = [sys.executable, "-m", "app.cli.main", "serve", "--no-worker", "--port", str(port)]
    process = subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        answer = until(lambda: asked(f"http://127.0.0.1:{port}/api/v1/runs/5?key={secret}"), "an answer")
        assert answer.status_code == 401
    finally:
        process.send_signal(signal.SIGTERM)
        _out, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert secret not in errors
    lines = [json.loads(line) for line in errors.splitlines() if line.startswith("{")]
    mine = next(line for line in lines if line.get("request_id") == "seen-by-the-test")
    assert (mine["run_id"], mine["status"], mine["path"]) == (5, 401, "/api/v1/runs/5")


def test_children_get_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = [name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation)]
    assert {f"DDP_AUDIT_{name.upper()}" for name in fields} <= set(SECRETS)
    settings = Settings(data_dir=tmp_path, warm_start=False)
    monkeypatch.setenv("ddp_audit_webhook_secret", "lower-case-works-too")
    for name in SECRETS:
        monkeypatch.setenv(name, "hidden-from-jobs")
    code = f"import os; open({str(tmp_path / 'seen')!r}, 'w').write(repr(dict(os.environ)))"
    plan = AttemptPlan(
        run_id=1,
        stage="train",
        attempt=1,
        launcher="python",
        imports="nothing",
        command=("-c", code),
        environment={"DDP_AUDIT_MARKER": "operating-test:1"},
        cwd=tmp_path,
        paths=AttemptPaths(tmp_path / "1" / "train" / "attempt_1"),
        marker="operating-test:1",
        ranks=1,
        grace_seconds=1.0,
    )
    plan.paths.run.mkdir()  # as the worker does
    executor = LocalExecutor(settings)
    handle = executor.start(plan)
    seen = until(lambda: (tmp_path / "seen").exists() and (tmp_path / "seen").read_text(), "what the job saw")
    handle.destroy()
    executor.close()
    assert "PATH" in seen
    assert "hidden-from-jobs" not in seen
    assert "lower-case-works-too" not in seen
