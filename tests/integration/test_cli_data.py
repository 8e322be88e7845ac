"""Commands that show outputs of runs, on the data directory and with a service: the same answers, complete files."""

import csv
import io
import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app.db import create_database_engine, write_session
from app.runs.models import MalformedLine
from app.settings import Settings
from tests.support.cli import asking, call
from tests.support.pages_data import add_events, add_run, add_stages, add_usage, fill, write_log
from tests.support.service import running_service

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(data_dir=tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def engine(settings: Settings) -> Iterator[Engine]:
    engine = create_database_engine(settings)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def ids(settings: Settings, engine: Engine) -> dict[str, int]:
    ids = fill(settings, engine)
    told = add_run(engine, "failed", reason="rank_exit", moves=("starting", "running"))
    add_stages(engine, told, {"train": "failed"})
    add_usage(engine, told, "train", gpu=True)
    with write_session(engine) as session:
        values = {"loss": 0.5, "odd": "NaN"}
        lines: list[dict[str, Any]] = [{"type": "phase", "phase": "forward", "step": 1}]
        lines += [{"type": "metrics", "step": step, "values": values, "rank": step % 2} for step in range(4)]
        add_events(session, told, "train", [*lines, {"type": "message", "level": "info", "text": "\x1b[31mred"}])
        session.add(MalformedLine(run_id=told, stage="train", attempt=1, rank=0, offset=7, text="{", why="not JSON"))
    files = settings.runs_dir / str(told) / "artifacts" / "näm e"
    files.mkdir(parents=True)
    (files / "a#b.txt").write_text("zeile ü\n")
    (files / "big.bin").write_bytes(b"\0\1" * 400_000)
    return ids | {"told": told}


@pytest.fixture(scope="module")
def port(settings: Settings, ids: dict[str, int]) -> Iterator[str]:
    with running_service(settings) as service:
        yield service.url.rsplit(":", 1)[1]


@pytest.fixture(params=["directory", "service"])
def ask(request: pytest.FixtureRequest, settings: Settings, port: str, tmp_path: Path) -> Any:
    """Return a function that runs a command on the data directory or with the service."""
    return asking(settings, port if request.param == "service" else None, tmp_path / "none")


READS = [
    ("result", "1"),
    ("result", "2"),
    ("result", "4"),
    ("metrics", "6"),
    ("metrics", "6", "--key", "loss", "--rank", "1", "--max-points", "5"),
    ("metrics", "6", "--from", "3", "--to", "5"),
    ("metrics", "6", "--max-points", "1"),
    ("resources", "RUN"),
    ("events", "RUN"),
    ("events", "RUN", "--after", "2", "--type", "metrics", "--rank", "1", "--stage", "train", "--limit", "1"),
    ("events", "RUN", "--type", "song"),
    ("events", "RUN", "--malformed"),
    ("artifacts", "RUN"),
    ("artifacts", "RUN", "näm e/a#b.txt"),
    ("artifacts", "RUN", "../result.json"),
    ("artifacts", "RUN", "none.txt"),
    ("audit",),
    ("audit", "--run", "5", "--action", "cancel", "--limit", "1"),
    ("audit", "--limit", "0"),
    ("export",),
    ("export", "RUN"),
    ("export", "RUN", "--format", "csv"),
    ("export", "1", "--format", "csv", "--table", "checks"),
    ("export", "RUN", "--format", "csv", "--table", "checks"),
    ("export", "--format", "csv", "--table", "checks", "--verdict", "fail"),
    ("export", "--state", "asleep"),
    ("trends", "token-parity", "gradient_parity", "--preset", "quick"),
    ("deliveries", "--status", "failed"),
    ("result", "999"),
    ("metrics", "999"),
    ("resources", "999"),
    ("events", "999"),
    ("events", "999", "--malformed"),
    ("artifacts", "999"),
    ("export", "999"),
]


@pytest.mark.parametrize("arguments", READS, ids=" ".join)
def test_service_and_directory_agree(
    settings: Settings, ids: dict[str, int], port: str, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    words = [word.replace("RUN", str(ids["told"])) for word in arguments]
    direct = call(*words, "--json", data_dir=settings.data_dir)
    remote = call(*words, "--json", data_dir=tmp_path, DDP_AUDIT_PORT=port)
    assert direct.document == remote.document
    assert direct.returncode == remote.returncode
    assert not (tmp_path / "ddp-audit.db").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("result", "1"), 0),
        (("result", "2"), 1),
        (("result", "4"), 6),
        (("result", "999"), 6),
        (("metrics", "6", "--max-points", "1"), 2),
        (("events", "1", "--type", "song"), 2),
        (("events", "1", "--malformed", "--after", "3"), 2),
        (("events", "1", "--malformed", "-f"), 2),
        (("artifacts", "1", "-o", "x"), 2),
        (("artifacts", "1", "none"), 6),
        (("audit", "--limit", "0"), 2),
        (("export", "1", "--table", "runs"), 2),
        (("export", "--table", "metrics"), 2),
        (("export", "1", "--state", "failed"), 2),
        (("export", "1", "-q", "x"), 2),
        (("export", "--format", "parquet", "--json"), 2),
        (("export", "4", "--table", "checks", "--format", "csv"), 6),
        (("export", "--format", "xls"), 2),
    ],
    ids=str,
)
def test_exit_codes_tell_what_is_wrong(
    settings: Settings, ids: dict[str, int], arguments: tuple[str, ...], code: int
) -> None:
    done = call(*arguments, data_dir=settings.data_dir)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert bool(done.stderr) == (code not in {0, 1})


def test_people_read_tables(ask: Any, ids: dict[str, int]) -> None:
    told = str(ids["told"])
    assert "gradient_parity" in ask("result", "1").stdout
    assert ask("result", "1").stdout.endswith("run 1: verdict pass\n")
    assert "all points" in ask("metrics", "6").stdout
    assert "GPU MiB" in ask("resources", told).stdout
    events = ask("events", told, "--type", "message")
    assert events.returncode == 0
    assert "red" in events.stdout
    assert "\x1b" not in events.stdout
    assert "not JSON" in ask("events", told, "--malformed").stdout
    assert "big.bin" in ask("artifacts", told).stdout
    assert "more: --before" in ask("audit", "--limit", "1").stdout
    status = ask("status")
    assert (status.returncode, status.stdout.splitlines()[-1]) == (1, "not ready")
    assert "iB free; minimum free space: 256.0 MiB" in status.stdout
    show = ask("show", "1")
    assert show.returncode == 0
    assert "  ·" not in show.stdout
    assert "(completed)" not in show.stdout
    assert ask("status", "--json").document["shortfalls"][0]["code"] == "no_worker"


def test_events_follow_to_the_end(ask: Any, ids: dict[str, int]) -> None:
    done = ask("events", str(ids["told"]), "-f", "--json", "--after", "1")
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [2, 3, 4, 5, 6]


def test_artifact_comes_whole(ask: Any, ids: dict[str, int], settings: Settings, tmp_path: Path) -> None:
    source = settings.runs_dir / str(ids["told"]) / "artifacts" / "näm e" / "big.bin"
    target = tmp_path / "big.bin"
    done = ask("artifacts", str(ids["told"]), "näm e/big.bin", "-o", str(target), "--json")
    assert done.document["bytes"] == 800_000
    assert target.read_bytes() == source.read_bytes()
    assert ask("artifacts", str(ids["told"]), "näm e/a#b.txt").stdout == "zeile ü\n"


def test_log_comes_as_it_is(ask: Any, ids: dict[str, int], settings: Settings, tmp_path: Path) -> None:
    told = str(ids["told"])
    source = write_log(settings, ids["told"], "train", 1, "", stream="stderr")
    source.write_bytes(b"\x1b[31mred\xff\n" * 3)
    place = ("--rank", "1", "--stage", "train", "--stream", "stderr", "-o", str(tmp_path / "log"))
    assert ask("logs", told, *place, "--attempt", "1", "--json").document["bytes"] == source.stat().st_size
    assert (tmp_path / "log").read_bytes() == source.read_bytes()
    assert ask("logs", told, *place, "--attempt", "7").returncode == 6
    assert ask("logs", told, "-o", str(tmp_path / "log")).returncode == 2
    assert ask("logs", told, "--stream", "stderr").returncode == 2


def test_version_is_told(ask: Any) -> None:
    assert ask("--version").stdout == f"ddp-audit {metadata.version('ddp-audit')}\n"


def test_missing_artifact_leaves_the_old_file(ask: Any, ids: dict[str, int], tmp_path: Path) -> None:
    target = tmp_path / "kept"
    target.write_text("before")
    assert ask("artifacts", str(ids["told"]), "none.bin", "-o", str(target)).returncode == 6
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_export_writes_the_format_of_the_name(ask: Any, ids: dict[str, int], tmp_path: Path) -> None:
    told = str(ids["told"])
    for name in ("m.csv", "m.parquet", "m.json"):
        assert ask("export", told, "-o", str(tmp_path / name), "--json").document["file"].endswith(name)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "m.csv").read_text())))
    assert [row["value"] for row in rows] == ["0.5", "NaN"] * 4
    table = parquet.read_table(tmp_path / "m.parquet")
    assert table["key"].to_pylist() == ["loss", "odd"] * 4
    document = json.loads((tmp_path / "m.json").read_text())
    assert document.keys() == {"run", "result", "resources", "events"}


def test_export_of_the_list_is_filtered(ask: Any, ids: dict[str, int], tmp_path: Path) -> None:
    text = ask("export", "--format", "csv", "--state", "failed", "--sort", "oldest").stdout
    assert [int(row["id"]) for row in csv.DictReader(io.StringIO(text))] == [ids["failed"], ids["told"]]
    everything = json.loads(ask("export").stdout)["items"]
    assert ask("export", "--json").document == {"items": everything}
    in_text = ask("export", "--format", "csv", "--state", "failed", "--sort", "oldest", "--json").document
    assert (in_text["format"], in_text["content"]) == ("csv", text)
    assert [run["id"] for run in everything] == [run["id"] for run in ask("list", "--json").document["items"]]
    checks = ask("export", "--table", "checks", "-o", str(tmp_path / "c.parquet"), "--json").document
    assert (checks["table"], checks["format"]) == ("checks", "parquet")
    table = parquet.read_table(tmp_path / "c.parquet")
    assert set(table["run_id"].to_pylist()) == {ids["passed"], ids["broken"], ids["cifar"]}


def test_viewer_sees_no_audit_log(tmp_path: Path) -> None:
    settings = Settings.model_validate({"data_dir": tmp_path, "token": "t", "viewer_token": "v"})
    with running_service(settings) as service:
        port = {"DDP_AUDIT_PORT": service.url.rsplit(":", 1)[1]}
        denied = call("audit", "--json", data_dir=tmp_path, **port, DDP_AUDIT_VIEWER_TOKEN="v")
        assert (denied.returncode, denied.document["code"]) == (2, "operator_only")
        assert call("audit", "--json", data_dir=tmp_path, **port, DDP_AUDIT_TOKEN="t").document["items"] == []
        assert call("export", "--json", data_dir=tmp_path, **port, DDP_AUDIT_VIEWER_TOKEN="v").returncode == 0
