"""The service's reports about itself over HTTP: status, storage, orphans, pages of deliveries, trends of one preset."""

from collections.abc import Iterator

import pytest
from sqlmodel import col, select

from app.clock import now
from app.db import read_session, write_session
from app.runs import queue
from app.runs.models import AuditEntry
from app.settings import Settings
from tests.support.ended import end_run
from tests.support.keeping_data import add_delivery, add_worker, leave_behind
from tests.support.service import Service, running_service, shown


@pytest.fixture
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("standing"))) as made:
        yield made


def waiting(service: Service, why: str = "") -> int:
    with write_session(service.engine) as session:
        run = queue.insert_run(session, kind="token-parity", params={"seed": 47, "world_size": 2}, preset="quick")
        run.waiting_for = why
        return queue.number_of(run)


@pytest.mark.sqlite  # its clock is this process's, and can be stopped
def test_status_tells_workers_and_queue(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = now()
    for module in ("tests.support.keeping_data", "app.db", "app.status"):
        monkeypatch.setattr(f"{module}.now", lambda: moment)
    first, second = waiting(service), waiting(service, "1 CPU run is active")
    found = service.get("/status").json()
    assert (found["ready"], [item["code"] for item in found["shortfalls"]]) == (False, ["no_worker"])
    assert [(item["id"], item["position"]) for item in found["queue"]] == [(first, 1), (second, 2)]
    absent = "no worker is running: `ddp-audit worker` starts one"
    assert [item["why"] for item in found["queue"]] == [absent, f"1 CPU run is active; {absent}"]
    assert (found["waiting"], found["running"]) == (2, 0)
    assert found["schema"]["database"] == found["schema"]["program"]
    add_worker(service.engine, silent_seconds=100)
    assert service.get("/status").json()["ready"] is False
    add_worker(service.engine)
    found = service.get("/status").json()
    assert found["ready"] is True
    assert [worker["fresh"] for worker in found["workers"]] == [True, False]
    assert [item["why"] for item in found["queue"]] == ["a worker takes it within a second", "1 CPU run is active"]
    assert [worker["heartbeat_seconds"] for worker in found["workers"]] == [0, 100]


def test_status_names_every_shortfall(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = Settings(data_dir=tmp_path_factory.mktemp("low"), min_free_bytes=2**60)
    with running_service(settings) as service:
        codes = [item["code"] for item in service.get("/status").json()["shortfalls"]]
        assert codes == ["no_worker", "disk_low", "disk_low"]
        assert service.http.get("/readyz").json()["code"] == "no_worker"
        page = service.http.get("/status", headers={"Accept": "text/html"})
        assert page.status_code == 200
        assert "too little" in page.text


def test_usage_tells_what_else_is_there(service: Service) -> None:
    folder = service.settings.datasets_dir / "photos"
    folder.mkdir(parents=True)
    (folder / "one").write_bytes(b"x" * 700)
    end_run(service.engine, service.settings.runs_dir, payload=b"x" * 300)
    found = service.get("/usage").json()
    assert found["datasets"] == [{"name": "photos", "bytes": 700, "files": 1, "acquired": False}]
    assert found["database_bytes"] > 4096
    assert found["bytes"] > 300
    assert found["free_bytes"]["runs"] > 0
    assert found["min_free_bytes"] == service.settings.min_free_bytes
    before = found["other_bytes"]
    (service.settings.data_dir / "stray").write_bytes(b"x" * 50)
    assert service.get("/usage").json()["other_bytes"] == before + 50


def test_orphans_go_by_the_plan_seen(service: Service) -> None:
    left = leave_behind(service.settings.runs_dir / "900" / "a", 100)
    answer = service.get("/orphans")
    assert answer.status_code == 200
    found = answer.json()
    assert [(item["what"], item["path"]) for item in found["items"]] == [("folder_without_run", "runs/900")]
    assert str(service.settings.data_dir) not in str(found)
    answer = service.post("/orphans", {"plan": "another"})
    assert (answer.status_code, answer.json()["code"]) == (409, "plan_changed")
    assert left.exists()
    assert service.post("/orphans", {}).status_code == 422
    done = service.post("/orphans", {"plan": found["plan"]}).json()
    assert ([item["path"] for item in done["removed"]], done["bytes"]) == (["runs/900"], 100)
    assert not left.exists()
    with read_session(service.engine) as session:
        entry = session.exec(select(AuditEntry).where(col(AuditEntry.action) == "remove_orphans")).one()
        assert entry.detail == "1 orphans, 100 bytes"


def test_plan_names_whom_it_spares(service: Service) -> None:
    pinned = end_run(service.engine, service.settings.runs_dir, pinned=True)
    going, gone = waiting(service), end_run(service.engine, service.settings.runs_dir)
    found = service.get("/retention", params={"max_runs": 0}).json()
    assert [item["id"] for item in found["remove"]] == [gone]
    assert {item["id"]: item["why"] for item in found["spared"]} == {pinned: "pinned", going: "has not ended: queued"}
    assert found["kept_runs"] == 2


def test_deliveries_come_in_pages(service: Service) -> None:
    with write_session(service.engine) as session:
        for run_id, status in enumerate(("delivered", "failed", "delivered"), start=1):
            add_delivery(session, run_id, "", status, [204])
    first = service.get("/webhooks/deliveries", params={"limit": 2}).json()
    assert ([item["id"] for item in first["items"]], first["next_before"]) == ([3, 2], 2)
    last = service.get("/webhooks/deliveries", params={"limit": 2, "before": 2}).json()
    assert ([item["id"] for item in last["items"]], last["next_before"]) == ([1], None)
    failed = service.get("/webhooks/deliveries", params={"status": "failed"}).json()
    assert [item["run_id"] for item in failed["items"]] == [2]
    assert service.get("/webhooks/deliveries", params={"status": "lost"}).status_code == 422


def test_trends_keep_presets_apart(service: Service) -> None:
    ids = [end_run(service.engine, service.settings.runs_dir) for _ in range(3)]
    asked = {"kind": "token-parity", "check": "gradient_parity"}
    found = service.get("/trends", params={**asked, "preset": "quick", "limit": 2}).json()
    assert ([item["run_id"] for item in found["items"]], found["total"]) == (ids[1:], 3)
    answer = service.get("/trends", params={**asked, "preset": "full"})
    assert answer.status_code == 404
    assert "preset 'full'" in answer.json()["detail"]


def test_public_may_sign_in(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = Settings(data_dir=tmp_path_factory.mktemp("public"), token="secret", public_read=True)
    with running_service(settings) as service:
        page = shown(service.http, "/storage?newest=0")
        assert 'href="/login?next=/storage%3Fnewest%3D0">Sign in</a>' in page
        assert "Remove exactly these" not in page
        assert ">Sign in</a>" not in shown(service.http, "/login")
