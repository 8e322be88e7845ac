"""Requests that read whole runs: two at a time, the third must retry later, and all others are served."""

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.settings import Settings
from app.web.api import files
from tests.support.pages_data import add_run
from tests.support.service import Service, running_service

HEAVY = ["/runs/{}/verification", "/runs/{}/checkpoints", "/usage", "/orphans"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as running:
        add_run(running.engine, "succeeded", verdict="pass", reason="completed")
        (running.settings.runs_dir / "1").mkdir(parents=True)
        yield running


@pytest.mark.parametrize("path", HEAVY)
def test_third_is_told_to_come_back(service: Service, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    inside, go_on = threading.Semaphore(0), threading.Event()

    def slow(_root: Path) -> dict[str, bool]:
        inside.release()
        assert go_on.wait(30)
        return {"ok": True}

    monkeypatch.setattr(files, "verify_run", slow)
    answers: list[httpx.Response] = []

    def ask() -> None:
        with service.client() as client:
            answers.append(client.get("/api/v1/runs/1/verification"))

    readers = [threading.Thread(target=ask) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in readers:
            assert inside.acquire(timeout=30)
        refused = service.get(path.format(1))
        assert (refused.status_code, refused.json()["code"]) == (429, "busy")
        assert int(refused.headers["retry-after"]) > 0
        assert service.get("/runs/1").status_code == 200
    finally:
        go_on.set()
        for reader in readers:
            reader.join()
    assert [answer.status_code for answer in answers] == [200, 200]
    assert service.get("/usage").status_code == 200  # their places are free again, also after the refusal
