"""Commands for clean-up and inspection: `clean` removes only its own files, databases are migrated or refused."""

import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from sqlalchemy import text

from app.db import create_database_engine
from app.schema import migrate
from app.settings import Settings
from tests.support.cli import call
from tests.support.pages_data import add_run, write_log
from tests.support.service import running_service


def untidy(settings: Settings) -> dict[str, int]:
    """Fill a data directory: ended, active and pinned runs, two folders without a run, and a file added by hand."""
    migrate(settings)
    engine = create_database_engine(settings)
    ids = {
        "ended": add_run(engine, "failed", reason="hang"),
        "going": add_run(engine, "running", moves=("starting",)),
        "pinned": add_run(engine, "succeeded", verdict="pass", pinned=True),
    }
    engine.dispose()
    for number in (*ids.values(), 77, 78):
        write_log(settings, number, "train", 0, "x" * 100)
    (settings.runs_dir / "notes.txt").write_text("mine")
    quiet = time.time() - 3600
    left = settings.runs_dir / "77"  # 78 may belong to a run that is being recorded
    for path in (left, *left.rglob("*")):
        os.utime(path, (quiet, quiet))
    return ids


def kept(settings: Settings, ids: dict[str, int]) -> None:
    """Assert that only removable items were removed."""
    names = sorted(path.name for path in settings.runs_dir.iterdir())
    assert names == sorted([str(ids["going"]), str(ids["pinned"]), "78", "notes.txt"])
    left = call("list", "--json", data_dir=settings.data_dir).document["items"]
    assert [run["id"] for run in left] == [ids["pinned"], ids["going"]]


@pytest.mark.parametrize("served", [False, True], ids=["directory", "service"])
def test_clean_lists_before_it_removes(tmp_path: Path, served: bool) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    ids = untidy(settings)
    with running_service(settings) if served else nullcontext() as service:
        place = tmp_path / "other" if served else settings.data_dir
        given = {"DDP_AUDIT_PORT": service.url.rsplit(":", 1)[1]} if service else {}
        listed = call("clean", "--json", data_dir=place, **given).document
        assert [item["path"] for item in listed["items"]] == [f"runs/{ids['ended']}", "runs/77"]
        assert (listed["bytes"], listed["removed"], listed["skipped"]) == (200, False, [])
        assert (settings.runs_dir / "77").exists()
        assert "--yes removes them" in call("clean", data_dir=place, **given).stdout
        done = call("clean", "--yes", "--json", data_dir=place, **given).document
        assert (done["items"], done["removed"]) == (listed["items"], True)
        assert call("clean", "--yes", "--json", data_dir=place, **given).document["items"] == []
    kept(settings, ids)
    assert not (tmp_path / "other").exists()


def test_given_directory_is_meant(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    untidy(settings)
    there = {"DDP_AUDIT_PORT": "1"}  # nothing listens there
    found = call("orphans", "--data-dir", str(settings.data_dir), "--json", data_dir=tmp_path / "other", **there)
    assert [item["path"] for item in found.document["items"]] == ["runs/77"]
    assert call("orphans", data_dir=settings.data_dir, **there).returncode == 7
    assert call("clean", "--yes", data_dir=settings.data_dir, **there).returncode == 7
    assert (settings.runs_dir / "77").exists()


def test_clean_needs_the_operator(tmp_path: Path) -> None:
    settings = Settings.model_validate({"data_dir": tmp_path / "data", "token": "t", "viewer_token": "v"})
    ids = untidy(settings)
    with running_service(settings) as service:
        port = {"DDP_AUDIT_PORT": service.url.rsplit(":", 1)[1], "DDP_AUDIT_VIEWER_TOKEN": "v"}
        assert call("clean", data_dir=tmp_path, **port).returncode == 0
        denied = call("clean", "--yes", "--json", data_dir=tmp_path, **port)
        assert (denied.returncode, denied.document["code"]) == (2, "read_only")
    assert (settings.runs_dir / str(ids["ended"])).exists()
    assert (settings.runs_dir / "77").exists()


def test_data_sets_of_a_service_are_not_ours(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    (settings.datasets_dir / "fetched").mkdir(parents=True)
    (settings.datasets_dir / ".acquired.json").write_text('["fetched"]')
    done = call("clean", "--scope", "datasets", "--yes", "--json", data_dir=tmp_path, DDP_AUDIT_PORT="1")
    assert done.returncode == 2
    assert "DDP_AUDIT_PORT" in done.document["detail"]
    assert (settings.datasets_dir / "fetched").exists()


def test_clean_keeps_to_its_own_place(tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "5"
    outside.mkdir(parents=True)
    done = call("clean", "--yes", data_dir=tmp_path / "data", DDP_AUDIT_RUNS_DIR=str(outside.parent))
    assert done.returncode == 2
    assert outside.exists()
    home = call("clean", "--yes", data_dir=tmp_path, HOME=str(tmp_path))
    assert home.returncode == 2


def test_datasets_go_only_by_scope(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    for name in ("fetched", "by-hand"):
        (settings.datasets_dir / name).mkdir(parents=True)
        (settings.datasets_dir / name / "a.bin").write_bytes(b"12345")
    (settings.datasets_dir / ".acquired.json").write_text('["fetched", "..", "../x"]')
    assert call("clean", "--json", data_dir=tmp_path).document["items"] == []
    scoped = call("clean", "--scope", "datasets", "--yes", "--json", data_dir=tmp_path).document
    assert [(Path(item["path"]).name, item["bytes"]) for item in scoped["items"]] == [("fetched", 5)]
    assert [path.name for path in settings.datasets_dir.iterdir() if path.is_dir()] == ["by-hand"]


def test_newer_database_is_refused(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    migrate(settings)
    engine = create_database_engine(settings)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    done = call("list", data_dir=tmp_path)
    assert done.returncode == 2
    assert "newer ddp-audit" in done.stderr


def test_empty_directory_is_made_ready(tmp_path: Path) -> None:
    first = call("migrate", "--json", data_dir=tmp_path / "new").document
    assert (first["before"], first["changed"]) == (None, True)
    assert call("migrate", "--json", data_dir=tmp_path / "new").document["changed"] is False


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys; from app.cli.main import app; print(sorted({'torch', 'fastapi', 'sqlalchemy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
