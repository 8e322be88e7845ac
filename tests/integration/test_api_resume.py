"""Retry with resume: the newest valid checkpoint becomes part of the new run."""

from collections.abc import Iterator

import pytest

from app.settings import Settings
from tests.support.checkpoints import add_checkpoint
from tests.support.pages_data import add_run, add_stages
from tests.support.service import Service, running_service
from trainer.contract.manifest import verify


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as running:
        yield running


def test_newest_valid_checkpoint_is_taken_over(service: Service) -> None:
    old = add_run(service.engine, "failed", reason="rank_signal", kind="resume")
    add_stages(service.engine, old, {"continuous": "succeeded", "train": "failed", "compare": "queued"})
    root = service.settings.runs_dir / str(old)
    add_checkpoint(root / "continuous" / "checkpoints", 10, 1.0)
    good = add_checkpoint(root / "train" / "checkpoints", 4, 2.0)
    add_checkpoint(root / "train" / "checkpoints", 3, 9.0)
    damaged = add_checkpoint(root / "train" / "checkpoints", 6, 3.0)
    (damaged / "shared.pt").write_bytes(b"state after 7")
    new = service.post(f"/runs/{old}/retry", {"resume": True}).json()
    assert new["resume_from"] == "train/checkpoints/step-0004"
    note = new["history"][0]["note"]
    assert note.startswith(
        f"retry of run {old} from train/checkpoints/step-0004; skipped train/checkpoints/step-0006: "
    )
    assert "shared.pt has 13 bytes" in note
    copy = service.settings.runs_dir / str(new["id"]) / new["resume_from"]
    assert verify(copy).header.step == 4
    assert (copy / "shared.pt").stat().st_ino == (good / "shared.pt").stat().st_ino
    assert service.http.delete(f"/api/v1/runs/{old}").status_code == 204
    assert verify(copy).header.step == 4  # it outlives its original run


def test_without_valid_checkpoint_nothing_is_recorded(service: Service) -> None:
    old = add_run(service.engine, "failed", reason="rank_signal", kind="resume")
    damaged = add_checkpoint(service.settings.runs_dir / str(old) / "checkpoints", 3, 1.0)
    (damaged / "shared.pt").unlink()
    before = service.get("/runs").json()
    answer = service.post(f"/runs/{old}/retry", {"resume": True})
    assert (answer.status_code, answer.json()["code"]) == (409, "no_checkpoint")
    assert "shared.pt is missing" in answer.json()["detail"]
    assert service.get("/runs").json() == before
    assert service.post(f"/runs/{old}/retry", {"resume": False}).status_code == 201


def test_plain_retry_takes_nothing_over(service: Service) -> None:
    old = add_run(service.engine, "failed", reason="rank_signal", kind="resume")
    add_checkpoint(service.settings.runs_dir / str(old) / "checkpoints", 3, 1.0)
    new = service.post(f"/runs/{old}/retry").json()
    assert new["resume_from"] is None
    assert not (service.settings.runs_dir / str(new["id"])).exists()
