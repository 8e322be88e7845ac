"""HEAD returns the status and headers of GET and generates no body: no export, no file read, no verifier started."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app.runs.exports import run as run_export
from app.runs.exports import runlist
from app.runs.results import checkpoints
from app.settings import Settings
from app.storage import orphans, overview
from app.web.api import files, telemetry
from app.web.views import standalone
from tests.support.pages_data import fill
from tests.support.service import Service, running_service

parquet = pytest.importorskip("pyarrow.parquet")
Filled = tuple[Service, dict[str, int]]
BODIES = [
    ("/runs/PASSED/export", run_export, "json_pieces"),
    ("/runs/PASSED/export?format=csv", run_export, "_metric_lines"),
    ("/runs/PASSED/export?format=csv&table=resources", run_export, "_resource_rows"),
    ("/runs/PASSED/export?format=parquet", run_export, "_metric_lines"),
    ("/runs/export", runlist, "list_runs"),
    ("/runs/export?format=csv&table=checks", runlist, "list_runs"),
    ("/runs/export?format=parquet", runlist, "list_runs"),
    ("/runs/PASSED/logs/0?stage=distributed&download=1", telemetry, "_file"),
    ("/runs/PASSED/page", standalone, "run_context"),
    ("/runs/PASSED/verification", files, "verify_run"),
    ("/runs/PASSED/checkpoints", files, "check_checkpoints"),
    ("/usage", overview, "usage"),
    ("/orphans", orphans, "find_orphans"),
]
assert checkpoints.check_checkpoints is files.check_checkpoints  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("head"))) as service:
        yield service, fill(service.settings, service.engine)


def address(filled: Filled, path: str) -> str:
    for name, number in filled[1].items():
        path = path.replace(name.upper(), str(number))
    return f"/api/v1{path}"


KEPT = ("content-type", "content-disposition", "content-security-policy", "etag", "last-modified", "accept-ranges")


@pytest.mark.parametrize(("path", "module", "name"), BODIES)
def test_head_makes_no_body(filled: Filled, monkeypatch: pytest.MonkeyPatch, path: str, module: Any, name: str) -> None:
    made: list[str] = []
    real: Callable[..., Any] = getattr(module, name)

    def noted(*arguments: Any, **named: Any) -> Any:
        made.append(name)
        return real(*arguments, **named)

    def lazily(*arguments: Any, **named: Any) -> Iterator[Any]:  # a generator runs when it is read, not when called
        made.append(name)
        yield from real(*arguments, **named)

    generates = name in {"json_pieces", "_metric_lines", "_resource_rows", "_file"}
    monkeypatch.setattr(module, name, lazily if generates else noted)
    service = filled[0]
    head = service.http.head(address(filled, path))
    assert (head.status_code, head.content, made) == (200, b"", [])
    full = service.http.get(address(filled, path))
    assert made, "GET makes it"
    for header in KEPT:
        assert head.headers.get(header) == full.headers.get(header), header
    assert head.headers.get("content-length") in (None, full.headers.get("content-length"))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/runs/999/export", 404),
        ("/runs/CANCELLED/export?format=csv&table=checks", 404),
        ("/runs/PASSED/export?format=song", 422),
        ("/runs/export?format=csv&table=song", 422),
        ("/runs/PASSED/artifacts/none", 404),
        ("/runs/RUNNING/page", 409),
        ("/runs/CANCELLED/checkpoints", 404),
        ("/runs/999/verification", 404),
        ("/runs/PASSED/logs/9?download=1", 404),
    ],
)
def test_head_refuses_what_get_refuses(filled: Filled, path: str, status: int) -> None:
    service = filled[0]
    head, full = (method(address(filled, path)) for method in (service.http.head, service.http.get))
    assert (head.status_code, full.status_code, head.content) == (status, status, b"")
    assert head.headers["content-type"] == full.headers["content-type"]


def test_parquet_that_cannot_be_made_is_refused(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    for path in ("/runs/export?format=parquet", "/runs/PASSED/export?format=parquet"):
        assert filled[0].http.head(address(filled, path)).status_code == 406


def test_artifact_is_not_opened(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    service, runs = filled
    path = address(filled, "/runs/PASSED/artifacts/no_sync/sample.png")
    full = service.http.get(path)
    stored = service.settings.runs_dir / str(runs["passed"]) / "artifacts" / "no_sync" / "sample.png"
    monkeypatch.setattr("anyio.open_file", None)  # routes that send a file
    head = service.http.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == stored.stat().st_size == len(full.content)
    for header in KEPT:
        assert head.headers.get(header) == full.headers.get(header), header


def test_length_of_a_log_is_told(filled: Filled) -> None:
    service, _ = filled
    path = address(filled, "/runs/PASSED/logs/0?stage=distributed&download=1")
    assert int(service.http.head(path).headers["content-length"]) == len(service.http.get(path).content) > 0


def test_connection_goes_on_after_head(filled: Filled, tmp_path: Path) -> None:
    service = filled[0]
    for path in ("/static/css/base.css", address(filled, "/runs/export"), "/openapi.json", "/favicon.ico"):
        head, full = service.http.head(path), service.http.get(path)
        assert (head.status_code, head.content, full.status_code) == (200, b"", 200)
        assert head.headers["content-type"] == full.headers["content-type"]


def test_no_export_holds_a_connection(filled: Filled) -> None:
    service = filled[0]
    engine: Engine = service.engine
    for _ in range(40):  # more than the pool has
        assert service.http.head(address(filled, "/runs/export?format=csv")).status_code == 200
    assert engine.pool.checkedout() <= 2  # type: ignore[attr-defined]
