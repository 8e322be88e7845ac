"""Runs over REST: submitting, listing, showing, cancelling, retrying, deleting."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlmodel import col, select

from app.clock import now
from app.db import read_session, write_session
from app.runs.models import AuditEntry, Run, RunEvent, WorkerRow
from app.runs.removal import finish_deletions
from app.settings import Settings
from tests.support.pages_data import add_events, add_run, add_stages, write_log
from tests.support.service import Service, running_service, shown
from trainer.contract.kinds import kinds


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as running:
        yield running


def test_submitted_run_is_queued_and_complete(service: Service) -> None:
    given = {"kind": "token-parity", "params": {"updates": 3}, "name": " mine ", "tags": ["b", "a", "b"]}
    answer = service.post("/runs", given)
    run = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/api/v1/runs/{run['id']}"
    assert (run["state"], run["name"], run["tags"], run["preset"]) == ("queued", "mine", ["a", "b"], "quick")
    assert run["params"]["updates"] == 3
    assert run["params"].keys() == kinds()["token-parity"].params.model_fields.keys()
    assert [move["to"] for move in run["history"]] == ["queued"]
    assert run["reproduce"] == "ddp-audit run token-parity --preset quick -p updates=3"
    assert run["queue"]["position"] >= 1
    assert service.get(f"/runs/{run['id']}").json() == run


def test_same_key_gives_same_run(service: Service) -> None:
    body, headers = {"kind": "resume", "tags": ["once"]}, {"Idempotency-Key": "key-1"}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: service.post("/runs", body, headers=headers), range(8)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(service.get("/runs", params={"tag": "once"}).json()["items"]) == 1


def test_same_key_with_other_body_is_refused(service: Service) -> None:
    headers = {"Idempotency-Key": "key-2"}
    first = service.post("/runs", {"kind": "resume"}, headers=headers)
    other = service.post("/runs", {"kind": "resume", "name": "other"}, headers=headers)
    assert (first.status_code, other.status_code) == (201, 422)
    assert other.json()["code"] == "idempotency_key_reused"


def test_pages_cover_every_run_once(tmp_path: Path) -> None:
    with running_service(Settings(data_dir=tmp_path)) as service:
        ids = [add_run(service.engine, "succeeded", verdict="pass") for _ in range(23)]
        seen, cursor = [], None
        while True:
            page = service.get("/runs", params={"limit": 5} | ({"cursor": cursor} if cursor else {})).json()
            seen += [run["id"] for run in page["items"]]
            if cursor is None:
                add_run(service.engine, "succeeded", verdict="pass")  # a new run does not shift the pages
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert seen == ids[::-1]


def test_filters_narrow_the_list(tmp_path: Path) -> None:
    with running_service(Settings(data_dir=tmp_path)) as service:
        passed = add_run(service.engine, "succeeded", verdict="pass", name="100% sure", tags=["night", "two"])
        failed = add_run(service.engine, "succeeded", verdict="fail", kind="resume", tags=["night"])
        waits = add_run(service.engine, "queued", name="Sure run")

        def found(**params: object) -> list[int]:
            return [run["id"] for run in service.get("/runs", params=params).json()["items"]]

        assert found(state="succeeded") == [failed, passed]
        assert found(state=["succeeded", "queued"]) == [waits, failed, passed]
        assert found(verdict="pass") == [passed]
        assert found(kind="resume") == [failed]
        assert found(tag="night") == [failed, passed]
        assert found(tag=["night", "two"]) == [passed]
        assert found(q="sure") == [waits, passed]
        assert found(q="100%") == [passed]
        assert found(q="%") == [passed]
        assert found(q=f"#{failed}") == [failed]
        assert found(q="night", verdict="fail") == [failed]
        assert found(kind="no-such-kind") == []


def test_etag_spares_an_unchanged_document(service: Service) -> None:
    run = service.post("/runs", {"kind": "resume"}).json()
    first = service.get(f"/runs/{run['id']}")
    again = service.get(f"/runs/{run['id']}", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert not again.content
    service.post(f"/runs/{run['id']}/cancel")
    changed = service.get(f"/runs/{run['id']}", headers={"If-None-Match": first.headers["etag"]})
    assert changed.json()["state"] == "cancelled"


def test_cancel_changes_nothing_twice(service: Service) -> None:
    run_id = add_run(service.engine, "running", moves=("starting",))
    first, second = (service.post(f"/runs/{run_id}/cancel") for _ in range(2))
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["state"] == "stopping"
    assert second.json()["history"] == first.json()["history"]


def test_cancel_of_ended_run_conflicts(service: Service) -> None:
    run_id = service.post("/runs", {"kind": "resume"}).json()["id"]
    assert service.post(f"/runs/{run_id}/cancel").json()["reason"] == "cancelled_by_user"
    again = service.post(f"/runs/{run_id}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "already_final")


def test_retry_links_to_the_old_run(service: Service) -> None:
    old = add_run(service.engine, "failed", reason="rank_exit", tags=["t"], params={"seed": 7})
    answer = service.post(f"/runs/{old}/retry")
    new = answer.json()
    assert (answer.status_code, new["retry_of"], new["state"], new["tags"]) == (201, old, "queued", ["t"])
    assert new["params"]["seed"] == 7
    assert service.get(f"/runs/{old}").json()["state"] == "failed"


def test_retry_needs_an_ended_run(service: Service) -> None:
    run_id = add_run(service.engine, "running", moves=("starting",))
    assert service.post(f"/runs/{run_id}/retry").status_code == 409


def test_delete_removes_rows_and_files(service: Service) -> None:
    run_id = add_run(service.engine, "failed", reason="rank_exit")
    add_stages(service.engine, run_id, {"train": "failed"})
    with write_session(service.engine) as session:
        add_events(session, run_id, "train", [{"type": "end"}] * 3)
    log = write_log(service.settings, run_id, "train", 0, "text")
    assert service.http.delete(f"/api/v1/runs/{run_id}").status_code == 204
    assert not log.exists()
    assert not (service.settings.runs_dir / str(run_id)).exists()
    assert service.get(f"/runs/{run_id}").status_code == 404
    assert service.http.delete(f"/api/v1/runs/{run_id}").status_code == 404
    with read_session(service.engine) as session:
        assert session.exec(select(RunEvent).where(RunEvent.run_id == run_id)).first() is None


def test_delete_of_running_run_conflicts(service: Service) -> None:
    run_id = add_run(service.engine, "running", moves=("starting",))
    answer = service.http.delete(f"/api/v1/runs/{run_id}")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_final")
    assert service.get(f"/runs/{run_id}").json()["state"] == "running"


def test_half_done_delete_is_finished(service: Service) -> None:
    run_id = add_run(service.engine, "failed", reason="rank_exit")
    write_log(service.settings, run_id, "train", 0, "text")
    with write_session(service.engine) as session:
        run = session.get_one(Run, run_id)
        run.deleting = True
        session.add(run)
    assert service.get(f"/runs/{run_id}").status_code == 404
    listed = service.get("/runs").json()["items"]
    assert run_id not in [run["id"] for run in listed]
    assert finish_deletions(service.engine, service.settings) == 1
    assert not (service.settings.runs_dir / str(run_id)).exists()
    with read_session(service.engine) as session:
        assert session.get(Run, run_id) is None


def test_verbs_leave_an_audit_trail(service: Service) -> None:
    run_id = service.post("/runs", {"kind": "resume"}).json()["id"]
    service.post(f"/runs/{run_id}/cancel")
    service.http.delete(f"/api/v1/runs/{run_id}")
    with read_session(service.engine) as session:
        entries = session.exec(select(AuditEntry).where(AuditEntry.run_id == run_id).order_by(col(AuditEntry.id)))
        assert [entry.action for entry in entries] == ["submit", "cancel", "delete"]


def test_new_number_starts_with_empty_folder(service: Service) -> None:
    latest = service.post("/runs", {"kind": "resume"}).json()["id"]
    stale = service.settings.runs_dir / str(latest + 1) / "checkpoints" / "step-0001"
    stale.mkdir(parents=True)
    assert service.post("/runs", {"kind": "resume"}).json()["id"] == latest + 1
    assert not stale.exists()


def add_worker(service: Service, gpus: int | None) -> None:
    devices = None if gpus is None else {"gpus": [{"index": number} for number in range(gpus)]}
    row = WorkerRow(
        id=f"w{gpus}", pid=1, pid_start=1, boot_id="b", host="h", started_at=now(), heartbeat_at=now(), devices=devices
    )
    with write_session(service.engine) as session:
        session.add(row)


def test_too_many_devices_are_refused(tmp_path: Path) -> None:
    body = {"kind": "token-parity", "params": {"device": "cuda"}}
    with running_service(Settings(data_dir=tmp_path)) as service:
        assert service.post("/runs", body).status_code == 201  # not known yet: it waits
        add_worker(service, 1)
        answer = service.post("/runs", body)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == "device"
        assert "needs 2 GPUs" in answer.json()["detail"]
        assert "1 GPU is visible" in answer.json()["detail"]
        shared = {"kind": "token-parity", "params": {"device": "cuda", "share_gpu": True}}
        assert service.post("/runs", shared).status_code == 201
        add_worker(service, 2)
        assert service.post("/runs", body).status_code == 201


def test_readiness_follows_the_workers(tmp_path: Path) -> None:
    with running_service(Settings(data_dir=tmp_path)) as service:
        assert service.http.get("/healthz").status_code == 200
        unready = service.http.get("/readyz")
        assert (unready.status_code, unready.json()["workers"]) == (503, [])
        add_worker(service, None)
        assert service.http.get("/readyz").status_code == 503
        add_worker(service, 0)
        ready = service.http.get("/readyz").json()
        assert ready["workers"][0].keys() == {"pid", "host", "devices", "kinds", "targets"}


def test_prometheus_names_no_run(service: Service) -> None:
    run_id = service.post("/runs", {"kind": "resume"}).json()["id"]
    assert service.get(f"/runs/{run_id}").status_code == 200
    text = shown(service.http, "/metrics")
    assert 'ddp_audit_runs{kind="resume",state="queued"}' in text
    assert 'route="/api/v1/runs/{run_id}"' in text
    assert f"/runs/{run_id}" not in text


def test_openapi_and_docs_stay_inside(service: Service) -> None:
    paths = service.http.get("/openapi.json").json()["paths"]
    assert {"/api/v1/runs", "/api/v1/runs/{run_id}/stream", "/api/v1/predict", "/healthz"} <= paths.keys()
    page = shown(service.http, "/docs")
    assert "http" not in page.replace("http-equiv", "")
    assert "<script>" not in page


def test_kinds_state_schema_and_presets(service: Service) -> None:
    items = {kind["name"]: kind for kind in service.get("/kinds").json()["items"]}
    assert items.keys() == kinds().keys()
    parity = items["token-parity"]
    assert parity["schema"]["properties"]["world_size"]["maximum"] == 64
    assert parity["presets"]["quick"]["learning_rate"] == 0.1
    assert parity["presets"]["quick"].keys() == parity["schema"]["properties"].keys()
