"""Launch options of a cluster, by form, API and command: the same fields, refused by name, kept, and shown."""

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from sqlmodel import col

from app.clock import now
from app.db import write_session
from app.runs.cluster import FIELDS
from app.runs.models import RankRow, Run, StageAttempt, WorkerRow
from app.settings import Settings
from tests.support.cli import call
from tests.support.service import Service, running_service

FORM = {"kind": "token-parity", "preset": "quick", "param.world_size": "4"}
LAUNCH: dict[str, Any] = {"nodes": 2, "cpus_per_rank": 2, "partition": "main", "time_limit": "30"}
PARTITION = {"name": "main", "default": True, "nodes": 2, "max_seconds": 3600}
WAITING = "Slurm job 7 is pending (Resources): it waits for free nodes"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    settings = Settings(data_dir=tmp_path / "data", executor="slurm", slurm_partition="usual")
    with running_service(settings) as running:
        yield running


def typed(launch: dict[str, Any]) -> dict[str, str]:
    return {**FORM, **{f"launch.{name}": str(value) for name, value in launch.items()}}


def worker(service: Service) -> None:
    devices = {"scheduler": "slurm", "partitions": [PARTITION]}
    row = WorkerRow(id="w", pid=1, pid_start=1, boot_id="x", host="h", started_at=now(), heartbeat_at=now())
    row.devices, row.kinds = devices, ["token-parity"]
    with write_session(service.engine) as session:
        session.add(row)


def test_form_has_the_fields_only_for_a_cluster(service: Service, tmp_path: Path) -> None:
    text = service.http.get("/launch?kind=token-parity").text
    assert all(f'name="launch.{name}"' in text for name in FIELDS)
    assert 'placeholder="usual"' in text
    with running_service(Settings(data_dir=tmp_path / "other")) as local:
        assert 'name="launch.' not in local.http.get("/launch?kind=token-parity").text


def test_form_records_what_was_typed_and_can_be_filled_in_again(service: Service) -> None:
    answer = service.http.post("/launch", data=typed(LAUNCH))
    assert answer.status_code == 303
    run_id = int(answer.headers["location"].rsplit("/", 1)[1])
    document = service.get(f"/runs/{run_id}").json()
    assert document["launch"] == LAUNCH
    assert "--launch nodes=2" in document["reproduce"]
    again = service.http.get(f"/launch?like={run_id}").text
    assert 'name="launch.partition" value="main"' in again


@pytest.mark.parametrize(
    ("launch", "field", "words"),
    [
        ({"nodes": 3}, "launch.nodes", "nodes can be 1, 2, 4"),
        ({"nodes": "two"}, "launch.nodes", "must be a whole number"),
        ({"partition": "nowhere"}, "launch.partition", "the cluster has main"),
        ({"time_limit": "2:00:00"}, "launch.time_limit", "120 minutes are over the 60"),
        ({"nodes": 4}, "launch.nodes", "partition main has 2"),
    ],
)
def test_refused_everywhere_by_the_same_field(service: Service, launch: dict[str, Any], field: str, words: str) -> None:
    worker(service)
    page = service.http.post("/launch", data=typed(launch))
    assert page.status_code == 422
    assert words in html.unescape(page.text)
    assert f'id="hint-{field}"><span class="error">' in page.text
    answer = service.post("/runs", {"kind": "token-parity", "params": {"world_size": 4}, "launch": launch})
    assert (answer.status_code, [item["field"] for item in answer.json()["errors"]]) == (422, [field])
    words_of = [word for name, value in launch.items() for word in ("--launch", f"{name}={value}")]
    done = call(
        *("run", "token-parity", "-p", "world_size=4", *words_of, "--detach"),
        data_dir=service.settings.data_dir,
        DDP_AUDIT_EXECUTOR="slurm",
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert service.get("/runs").json()["items"] == []


def test_registered_script_is_not_started_on_a_cluster(tmp_path: Path) -> None:
    scripts = {"nightly": ("python", "train.py")}
    request = {"kind": "trace", "params": {"script": "nightly"}}
    for executor, status in (("slurm", 422), ("local", 201)):
        with running_service(Settings(data_dir=tmp_path / executor, executor=executor, scripts=scripts)) as running:
            answer = running.post("/runs", request)
            assert answer.status_code == status, answer.text
            if status == 422:
                assert [item["field"] for item in answer.json()["errors"]] == ["script"]
                assert "trace --prepare DIR" in answer.json()["detail"]


def test_status_shows_the_cluster(service: Service) -> None:
    worker(service)
    page = service.http.get("/status").text
    assert "Slurm: main (2 nodes)" in page
    assert "64 runs on Slurm at a time" in page
    assert "no GPU" not in page


def test_reason_to_wait_and_nodes_are_shown(service: Service) -> None:
    run_id = service.post("/runs", {"kind": "token-parity", "launch": {"nodes": 2}}).json()["id"]
    with write_session(service.engine) as session:
        session.execute(update(Run).where(col(Run.id) == run_id).values(state="starting", waiting_for=WAITING))
        session.add(StageAttempt(run_id=run_id, stage="prepare", attempt=1, position=0, state="running"))
        session.flush()
        place = {"run_id": run_id, "stage": "prepare", "attempt": 1}
        session.add(RankRow(**place, rank=0, local_rank=0, node="node2", host="machine"))
        session.add(RankRow(**place, rank=1, local_rank=0, node="node1", host="machine"))
    assert service.get(f"/runs/{run_id}").json()["waiting_for"] == WAITING
    assert service.get("/runs").json()["items"][0]["waiting_for"] == WAITING
    for path in (f"/runs/{run_id}", "/runs"):
        assert WAITING in html.unescape(service.http.get(path).text)
    page = service.http.get(f"/runs/{run_id}").text
    assert "node2 (machine), local rank 0" in page
