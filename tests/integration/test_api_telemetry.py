"""Events, metrics, logs and files of a run over REST."""

import csv
import http.client
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.db import write_session
from app.runs.models import MalformedLine
from app.runs.telemetry.packing import NULL
from app.settings import Settings
from tests.support.pages_data import add_events, add_metric, add_run, add_stages, save_result, write_log
from tests.support.results import make_result
from tests.support.service import Service, running_service
from trainer.contract.paths import RunPaths


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as running:
        yield running


@pytest.fixture(scope="module")
def run_id(service: Service) -> int:
    number = add_run(service.engine, "succeeded", verdict="pass", reason="completed")
    add_stages(service.engine, number, {"prepare": "succeeded", "train": "succeeded"})
    with write_session(service.engine) as session:
        for step in range(1500):
            add_events(
                session, number, "train", [{"type": "sync", "step": step, "count": 1, "bytes": 4, "rank": step % 2}]
            )
        values = {"loss": "NaN", "=cmd|' /C calc'!A0": 1, "rate": None}
        add_events(session, number, "train", [{"type": "metrics", "step": 0, "values": values}])
    return number


def test_every_event_comes_once_in_order(service: Service, run_id: int) -> None:
    seen, after = [], 0
    for _ in range(3):
        page = service.get(f"/runs/{run_id}/events", params={"after": after, "limit": 700}).json()
        seen += page["items"]
        after = page["next_after"]
    assert [item["id"] for item in seen] == list(range(1, len(seen) + 1))
    assert len(seen) == 1501
    assert seen[3] | {"t": 0} == {
        "seq": seen[3]["seq"], "t": 0, "type": "sync", "step": 3, "count": 1, "bytes": 4,
        "id": 4, "stage": "train", "attempt": 1, "rank": 1,
    }  # fmt: skip
    assert service.get(f"/runs/{run_id}/events", params={"after": after}).json() == {"items": [], "next_after": after}


def test_malformed_lines_are_shown(service: Service, run_id: int) -> None:
    row: dict[str, Any] = {
        "stage": "train",
        "attempt": 1,
        "rank": 1,
        "offset": 70,
        "text": '{"seq": 3, "t',
        "why": "torn at the end",
    }
    with write_session(service.engine) as session:
        session.add(MalformedLine(run_id=run_id, **row))
    assert service.get(f"/runs/{run_id}/malformed").json()["items"] == [row]
    assert service.get("/runs/999/malformed").status_code == 404


def test_event_filters_keep_the_numbers(service: Service, run_id: int) -> None:
    odd = service.get(f"/runs/{run_id}/events", params={"rank": 1, "limit": 1000}).json()["items"]
    assert [item["id"] for item in odd] == list(range(2, 1501, 2))
    metrics = service.get(f"/runs/{run_id}/events", params={"type": "metrics"}).json()["items"]
    assert [item["id"] for item in metrics] == [1501]
    assert metrics[0]["values"]["loss"] == "NaN"
    assert metrics[0]["values"]["rate"] is None
    assert service.get(f"/runs/{run_id}/events", params={"stage": "prepare"}).json()["items"] == []


def test_thinned_series_keeps_extremes(service: Service) -> None:
    number = add_run(service.engine, "running", moves=("starting",))
    values = [math.sin(step / 50) for step in range(20_000)]
    values[7_777], values[12_345], values[15_000], values[15_003], values[18_000] = (
        99.0,
        -99.0,
        math.nan,
        NULL,
        math.inf,
    )
    with write_session(service.engine) as session:
        for begin in range(0, 20_000, 5_000):
            add_metric(session, number, "train", 0, values[begin : begin + 5_000])
        add_metric(session, number, "train", 1, [1.0, 2.0])
    document = service.get(f"/runs/{number}/metrics", params={"max_points": 400}).json()
    assert document["keys"] == ["loss"]
    first, second = document["series"]
    assert (first["rank"], first["points"], first["thinned"]) == (0, 20_000, True)
    assert len(first["values"]) == len(first["steps"]) <= 400
    assert {99.0, -99.0, "NaN", "Infinity"} <= set(first["values"])
    assert None not in first["values"]  # only the first odd point of a section
    assert second["values"] == [1.0, 2.0]
    assert second["thinned"] is False
    only = service.get(f"/runs/{number}/metrics", params={"rank": 1, "key": "loss"}).json()["series"]
    assert [series["rank"] for series in only] == [1]


def test_null_is_told_from_nan(service: Service) -> None:
    number = add_run(service.engine, "running", moves=("starting",))
    with write_session(service.engine) as session:
        add_metric(session, number, "train", 0, [NULL, math.nan, -math.inf, 0.5])
    series = service.get(f"/runs/{number}/metrics").json()["series"][0]
    assert series["values"] == [None, "NaN", "-Infinity", 0.5]


def test_log_pieces_join_to_the_file(service: Service) -> None:
    number = add_run(service.engine, "running", moves=("starting",))
    add_stages(service.engine, number, {"train": "running"})
    text = "".join(f"line {index} äöü€😀\n" for index in range(400))
    write_log(service.settings, number, "train", 1, text)
    joined, offset = "", 0
    while (piece := service.get(f"/runs/{number}/logs/1", params={"offset": offset, "limit": 97}).json())["text"]:
        assert piece["offset"] == offset
        joined, offset = joined + piece["text"], piece["next_offset"]
    assert joined == text
    assert offset == piece["size"] == len(text.encode())
    tail = service.get(f"/runs/{number}/logs/1", params={"offset": -10}).json()
    assert text.endswith(tail["text"].lstrip("\ufffd"))


def test_log_download_is_the_whole_file(service: Service) -> None:
    number = add_run(service.engine, "running", moves=("starting",))
    add_stages(service.engine, number, {"train": "running"})
    path = write_log(service.settings, number, "train", 0, "x" * 3_000_000, stream="stderr")
    answer = service.get(f"/runs/{number}/logs/0", params={"download": 1, "stream": "stderr"})
    assert answer.content == path.read_bytes()
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


def test_bytes_that_are_no_text_are_shown(service: Service) -> None:
    number = add_run(service.engine, "running", moves=("starting",))
    add_stages(service.engine, number, {"train": "running"})
    path = write_log(service.settings, number, "train", 0, "a")
    path.write_bytes(b"a\xff\xfeb")
    assert service.get(f"/runs/{number}/logs/0").json()["text"] == "a\ufffd\ufffdb"


@pytest.fixture(scope="module")
def artifacts(service: Service, run_id: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    save_result(service.settings, run_id, make_result())
    root = RunPaths(service.settings.runs_dir / str(run_id)).artifacts
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.txt").write_text(SECRET)
    (root / "plain.txt").write_text("plain")
    (root / "evil.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    (root / "evil.html").write_text("<script>alert(1)</script>")
    (root / "model.pt").write_bytes(b"weights")
    (root / 'näme "quoted".bin').write_bytes(b"x")
    (root / "link.txt").symlink_to(outside / "secret.txt")
    (root / "linked").symlink_to(outside)
    (root / "inner.txt").symlink_to(root / "plain.txt")
    return root


SECRET = "never to be seen"
LEAVING = [
    "../result.json",
    "..%2Fresult.json",
    "%2e%2e/config.json",
    "no_sync/../../result.json",
    "link.txt",
    "linked/secret.txt",
    "%2Fetc%2Fpasswd",
    "/etc/passwd",
    "..",
    ".",
    "%2e%2e",
    "no_sync/../../../../../../../../etc/passwd",
    "no_sync",
    "plain.txt%00",
    "x" * 5000,
    "missing.txt",
]


@pytest.mark.parametrize("path", LEAVING)
def test_path_never_leaves_the_folder(service: Service, run_id: int, artifacts: Path, path: str) -> None:
    # No client library in between: most of them normalise a path before sending it.
    connection = http.client.HTTPConnection("127.0.0.1", int(service.url.rsplit(":", 1)[1]))
    connection.request("GET", f"/api/v1/runs/{run_id}/artifacts/{path}")
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 404
    assert SECRET.encode() not in body
    assert b"root:" not in body


def test_linked_folder_offers_nothing(service: Service, tmp_path: Path) -> None:
    number = add_run(service.engine, "failed", reason="rank_exit")
    (tmp_path / "file.txt").write_text(SECRET)
    root = RunPaths(service.settings.runs_dir / str(number)).artifacts
    root.parent.mkdir(parents=True)
    root.symlink_to(tmp_path)
    assert service.get(f"/runs/{number}/artifacts").json()["items"] == []
    assert service.get(f"/runs/{number}/artifacts/file.txt").status_code == 404


def test_artifacts_are_listed_and_given(service: Service, run_id: int, artifacts: Path) -> None:
    names = {item["path"] for item in service.get(f"/runs/{run_id}/artifacts").json()["items"]}
    assert names == {
        "no_sync/sample.png",
        "plain.txt",
        "evil.svg",
        "evil.html",
        "model.pt",
        'näme "quoted".bin',
        "inner.txt",
    }
    assert service.get(f"/runs/{run_id}/artifacts/plain.txt").text == "plain"
    assert service.get(f"/runs/{run_id}/artifacts/inner.txt").text == "plain"
    assert service.get(f"/runs/{run_id}/artifacts/no_sync/sample.png").headers["content-type"] == "image/png"
    binary = service.get(f"/runs/{run_id}/artifacts/model.pt")
    assert binary.headers["content-type"] == "application/octet-stream"
    assert binary.headers["content-disposition"].startswith("attachment")


@pytest.mark.parametrize("name", ["evil.svg", "evil.html"])
def test_active_documents_are_sandboxed(service: Service, run_id: int, artifacts: Path, name: str) -> None:
    answer = service.get(f"/runs/{run_id}/artifacts/{name}")
    assert answer.status_code == 200
    headers = answer.headers
    assert headers["content-security-policy"].startswith("sandbox;")
    assert "allow-scripts" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_result_is_the_file(service: Service, run_id: int, artifacts: Path) -> None:
    document = service.get(f"/runs/{run_id}/result").json()
    assert document["verdict"] == "pass"
    assert {check["name"] for check in document["checks"]} >= {"worked_example", "gradient_parity"}


def test_export_as_json_has_everything(service: Service, run_id: int, artifacts: Path) -> None:
    document = service.get(f"/runs/{run_id}/export", params={"format": "json"}).json()
    assert document["run"]["id"] == run_id
    assert document["result"]["verdict"] == "pass"
    assert len(document["events"]) == 1501


def test_export_as_csv_is_safe_for_spreadsheets(service: Service, run_id: int, artifacts: Path) -> None:
    text = service.get(f"/runs/{run_id}/export", params={"format": "csv"}).text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["key"], row["value"]) for row in rows] == [("loss", "NaN"), ("'=cmd|' /C calc'!A0", "1"), ("rate", "")]
    checks = service.get(f"/runs/{run_id}/export", params={"format": "csv", "table": "checks"}).text
    names = [row["name"] for row in csv.DictReader(io.StringIO(checks))]
    assert names[0] == "worked_example"


def test_export_as_parquet_has_real_numbers(service: Service, run_id: int) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    answer = service.get(f"/runs/{run_id}/export", params={"format": "parquet"})
    table = parquet.read_table(io.BytesIO(answer.content))
    assert table.column_names[-2:] == ["key", "value"]
    assert math.isnan(table["value"][0].as_py())


def test_compare_puts_runs_side_by_side(service: Service, run_id: int, artifacts: Path) -> None:
    other = add_run(service.engine, "succeeded", verdict="fail", reason="completed", params={"seed": 48})
    save_result(service.settings, other, make_result(error=0.5))
    bare = add_run(service.engine, "failed", reason="rank_exit")
    document = service.get("/compare", params={"ids": f"{run_id},{other},{bare}"}).json()
    assert document["ids"] == [run_id, other, bare]
    params = {row["name"]: row for row in document["params"]}
    assert params["seed"] == {"name": "seed", "values": [47, 48, 47], "differs": True}
    assert params["updates"]["differs"] is False
    checks = {row["name"]: row for row in document["checks"]}
    assert [check and check["passed"] for check in checks["gradient_parity"]["values"]] == [True, False, None]
    assert checks["gradient_parity"]["differs"]
    assert not checks["worked_example"]["differs"]  # the run without a result does not differ
    summary = {row["name"]: row["differs"] for row in document["summary"]}
    assert set(summary.values()) == {True, False}
    assert [entry["id"] for entry in document["metrics"]] == [run_id, other, bare]
