"""Programs traced on another machine: a prepared folder, what comes back in it, and what nobody may send."""

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.settings import Settings
from app.tracing import folders
from app.tracing.folders import NotATrace, Taken, take_archive, take_folder
from tests.support.cli import COMMAND, call, environment
from tests.support.service import Service, running_service
from tests.support.traced import SCRIPTS, ranks
from worker.loop import Worker

KIND = "trace"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of two real ranks that average over their own targets."""
    folder = tmp_path_factory.mktemp("records") / "of_ranks"
    with ranks() as server:
        assert server.run("language", "rank_mean", folder=folder) == [0, 0]
    return folder


@pytest.fixture
def service(settings: Settings) -> Iterator[Service]:
    with running_service(settings) as running:
        yield running


def archive_of(records: Path, params: dict[str, Any] | None = None) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as packed:
        packed.writestr("trace.json", json.dumps({"params": params or {}}))
        for path in records.glob("rank*"):
            packed.write(path, f"records/{path.name}")
    return target.getvalue()


@pytest.mark.torchrun
def test_prepared_folder_goes_out_and_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    prepared = call("trace", "--prepare", str(folder), "--allow", "rank_mean", data_dir=tmp_path / "data")
    assert prepared.returncode == 0, prepared.stderr
    exports = [line for line in prepared.stdout.splitlines() if line.startswith("export ")]
    assert [line.split("=")[0] for line in exports][:2] == ["export PYTHONPATH", "export DDP_AUDIT_TRACE"]
    launch = (
        f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 {SCRIPTS}/language.py rank_mean"
    )
    script = "\n".join([*exports, launch])
    bare = {name: value for name, value in os.environ.items() if not name.startswith("DDP_AUDIT_")}
    subprocess.run(["sh", "-ec", script], env={**bare, "OMP_NUM_THREADS": "1"}, cwd=tmp_path, check=True, timeout=200)
    done = call("trace", "--import", str(folder), "--name", "cluster", "--json", data_dir=tmp_path / "data")
    document = json.loads(done.stdout)
    assert (done.returncode, document["verdict"], document["name"]) == (0, "pass", "cluster")  # it was allowed there
    assert [item["name"] for item in document["result"]["summary"]["findings"]] == ["rank_mean"]


def test_half_of_the_ranks_is_no_pass(records: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    half.mkdir()
    for path in records.glob("rank0.*"):
        shutil.copy(path, half)
    document = json.loads(call("trace", "--import", str(half), "--json", data_dir=tmp_path / "data").stdout)
    assert document["verdict"] == "inconclusive"
    assert document["result"]["summary"]["coverage"]["missing_ranks"] == [1]


def test_whole_records_are_judged_as_where_they_were_made(records: Path, tmp_path: Path) -> None:
    document = json.loads(call("trace", "--import", str(records), "--json", data_dir=tmp_path / "data").stdout)
    assert document["verdict"] == "fail"
    assert [item["name"] for item in document["result"]["summary"]["findings"]] == ["rank_mean"]
    assert document["result"]["summary"]["exit_code"] is None


def test_folder_of_a_stranger_brings_nothing_else_in(records: Path, tmp_path: Path) -> None:
    folder, data = tmp_path / "strange", tmp_path / "data"
    shutil.copytree(records, folder)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (folder / "rank7.trace").symlink_to(secret)
    os.mkfifo(folder / "rank8.trace")
    (folder / "rank9.trace").mkdir()
    (folder / "result.json").write_text("{}")
    (folder / "rank00.trace").write_text("x")
    (folder / "rank3.trace").write_bytes(os.urandom(4096))
    done = call("trace", "--import", str(folder), "--json", data_dir=data)
    document = json.loads(done.stdout)
    brought = {path.name for path in (data / "runs" / str(document["id"]) / KIND / "attempt_1").iterdir()}
    assert not {"rank7.trace", "rank8.trace", "rank9.trace", "rank00.trace", "result.json"} & brought
    assert {"rank0.trace", "rank1.trace", "rank3.trace"} <= brought
    assert document["state"] == "succeeded"
    assert not list((data / "runs").glob(".incoming*"))


def test_parameters_that_came_along_are_checked(records: Path, tmp_path: Path) -> None:
    folder = tmp_path / "prepared"
    shutil.copytree(records, folder / "records")
    (folder / "trace.json").write_text(json.dumps({"params": {"windows": "many", "seed": 5, "world_size": 3}}))
    done = call("trace", "--import", str(folder), data_dir=tmp_path / "data")
    assert done.returncode == 2
    assert "windows" in done.stderr
    assert call("list", "--json", data_dir=tmp_path / "data").document["items"] == []
    (folder / "trace.json").write_text("[" * 100_000)
    assert call("trace", "--import", str(folder), data_dir=tmp_path / "data").returncode == 1


def test_too_much_is_refused(records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MOST_FILE_BYTES", 100)
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(NotATrace, match="too large"):
        take_folder(records, target)


def test_archive_is_judged_by_the_service(records: Path, service: Service) -> None:
    sent = service.http.post(
        "/api/v1/traces?name=far&tag=a&tag=b",
        content=archive_of(records, {"fail_on": "waste"}),
        headers={"Content-Type": "application/zip"},
    )
    assert sent.status_code == 201, sent.text
    document = sent.json()
    assert (document["state"], document["name"], sorted(document["tags"])) == ("queued", "far", ["a", "b"])
    assert document["params"]["fail_on"] == "waste"
    assert sent.headers["location"] == f"/api/v1/runs/{document['id']}"
    Worker(service.settings).run_once()
    ended = service.get(f"/runs/{document['id']}").json()
    assert (ended["state"], ended["verdict"]) == ("succeeded", "fail")
    assert service.post(f"/runs/{document['id']}/retry", {}).json()["code"] == "not_repeatable"


def test_import_sends_to_the_service_that_is_named(records: Path, service: Service, tmp_path: Path) -> None:
    port = service.url.rpartition(":")[2]
    process = subprocess.Popen(
        [str(COMMAND), "trace", "--import", str(records), "--json"],
        env=environment(tmp_path / "elsewhere", {"DDP_AUDIT_PORT": port}),
        stdout=subprocess.PIPE,
        text=True,
    )
    while not service.get("/runs").json()["items"]:
        assert process.poll() is None
    Worker(service.settings).run_once()
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, json.loads(out)["verdict"]) == (1, "fail")


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"", "application/zip", 422),
        (b"no archive", "application/zip", 422),
        (b"PK\x03\x04" + bytes(200), "application/zip", 422),
        (b"{}", "application/json", 422),
    ],
)
def test_what_is_no_archive_is_refused(content: bytes, kind: str, status: int, service: Service) -> None:
    sent = service.http.post("/api/v1/traces", content=content, headers={"Content-Type": kind})
    assert sent.status_code == status, sent.text
    assert service.get("/runs").json()["items"] == []


def test_archive_that_climbs_or_bursts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MOST_BYTES", 1 << 20)
    archive, target = tmp_path / "a.zip", tmp_path / "target"
    target.mkdir()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("../rank0.trace", "{}")
        packed.writestr("records/../../rank1.trace", "{}")
        packed.writestr("/records/rank2.trace", "{}")
        packed.writestr("records/rank3.trace", "{}")
    taken, _ = take_archive(archive, target)
    assert [path.name for path in tmp_path.rglob("rank*")] == ["rank3.trace"]
    assert (taken.files, taken.left_out) == (1, 3)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("records/rank4.trace", bytes(2 << 20))
    with pytest.raises(NotATrace, match="too large"):
        take_archive(archive, target)


@pytest.mark.parametrize("query", ["name=a%00b", "name=%01"])
def test_invalid_name_is_refused_with_its_field(query: str, records: Path, service: Service) -> None:
    sent = service.http.post(
        f"/api/v1/traces?{query}", content=archive_of(records), headers={"Content-Type": "application/zip"}
    )
    assert (sent.status_code, sent.json()["errors"][0]["field"]) == (422, "name")
    assert service.get("/runs").json()["items"] == []


def test_record_that_cannot_be_copied_is_not_left_out_silently(records: Path, tmp_path: Path) -> None:
    (tmp_path / "rank0.trace").write_text("in the way")
    with pytest.raises(FileExistsError):
        take_folder(records, tmp_path)


def test_nobody_sends_a_command(service: Service) -> None:
    body = {"kind": KIND, "params": {"command": ["touch", "/tmp/never"]}}
    answer = service.post("/runs", body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "script")
    imported = service.post("/runs", {"kind": KIND, "params": {"imported": True}})
    assert imported.status_code == 422
    unknown = service.post("/runs", {"kind": KIND, "params": {"script": "nightly"}})
    assert "DDP_AUDIT_SCRIPTS" in unknown.json()["detail"]


@pytest.mark.torchrun
def test_registered_script_is_run_by_a_worker(tmp_path: Path) -> None:
    launch = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 {SCRIPTS}/odd.py well"
    settings = Settings(data_dir=tmp_path, scripts=f"nightly={launch}")
    with running_service(settings) as service:
        recorded = service.post("/runs", {"kind": KIND, "params": {"script": "nightly"}}).json()
        Worker(settings).run_once()
        ended = service.get(f"/runs/{recorded['id']}").json()
        assert (ended["state"], ended["verdict"]) == ("succeeded", "pass"), ended["diagnosis"]
        again = service.post(f"/runs/{recorded['id']}/retry", {})
        assert again.status_code == 201, again.text
    bare = Settings(data_dir=tmp_path)
    Worker(bare).run_once()
    with running_service(bare) as service:
        gone = service.get(f"/runs/{again.json()['id']}").json()
        assert (gone["state"], gone["reason"]) == ("failed", "launch_error")
        assert "nightly" in gone["diagnosis"]


def test_file_twice_in_an_archive_is_refused(tmp_path: Path) -> None:
    archive, target = tmp_path / "a.zip", tmp_path / "target"
    target.mkdir()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("records/rank0.trace", "{}")
        packed.writestr("rank0.trace", "{}")
    with pytest.raises(NotATrace, match="twice"):
        take_archive(archive, target)


def test_nothing_taken_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotATrace, match="no record of a rank"):
        Taken(tmp_path).check("here")
