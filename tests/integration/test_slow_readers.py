"""Readers that request a file and stop reading: any number of them does not block other requests."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import insert

from app.clock import now
from app.db import write_session
from app.runs.models import Run
from app.settings import Settings
from tests.support.pages_data import add_run
from tests.support.service import Service, running_service

READERS = 17
"""More than the database's pool has connections."""
LARGE = 8_000_000
"""Bytes no socket buffers."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("slow"))) as made:
        run_id = add_run(made.engine, "failed", reason="hang")
        folder: Path = made.settings.runs_dir / str(run_id)
        (folder / "artifacts").mkdir(parents=True)
        (folder / "artifacts" / "large.bin").write_bytes(bytes(LARGE))
        row = {"kind": "cifar", "launch": {}, "gpus": [], "state": "cancelled", "params": {"text": "x" * 4000}}
        with write_session(made.engine) as session:
            session.execute(insert(Run), [row | {"created_at": now()} for _ in range(LARGE // 4000)])
        yield made


def stalled(service: Service, path: str) -> socket.socket:
    """Return a connection that has requested a file and read only its beginning."""
    place = urlsplit(service.url)
    reader = socket.create_connection((place.hostname, place.port), timeout=20)
    reader.sendall(f"GET /api/v1{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    assert reader.recv(12) == b"HTTP/1.1 200"
    return reader


@pytest.mark.parametrize("path", ["/runs/export?format=csv", "/runs/1/artifacts/large.bin"])
def test_stalled_readers_hold_nobody_up(service: Service, path: str) -> None:
    with ExitStack() as stack:
        for _ in range(READERS):
            stack.enter_context(stalled(service, path))
        assert service.http.get("/api/v1/runs", timeout=10).status_code == 200
        assert service.http.get("/runs", timeout=10).status_code == 200
