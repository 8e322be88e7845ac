"""Commands that tidy or only look: clean keeps to its own place, databases are made ready or refused."""

import subprocess
import sys
from pathlib import Path

from sqlalchemy import text

from app.db import create_database_engine
from app.schema import migrate
from app.settings import CHECKOUT, Settings
from tests.support.cli import call
from tests.support.pages_data import add_run, write_log


def test_clean_lists_before_it_removes(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    migrate(settings)
    engine = create_database_engine(settings)
    ended, going = add_run(engine, "failed", reason="hang"), add_run(engine, "running", moves=("starting",))
    pinned = add_run(engine, "succeeded", verdict="pass", pinned=True)
    engine.dispose()
    for number in (ended, going, pinned, 77):
        write_log(settings, number, "train", 0, "x" * 100)
    by_hand = settings.runs_dir / "notes.txt"
    by_hand.write_text("mine")
    listed = call("clean", "--json", data_dir=tmp_path).document
    assert [Path(item["path"]).name for item in listed["items"]] == [str(ended), "77"]
    assert (listed["bytes"], listed["removed"]) == (200, False)
    assert (settings.runs_dir / "77").exists()
    assert call("clean", "--yes", "--json", data_dir=tmp_path).document["removed"] is True
    assert sorted(path.name for path in settings.runs_dir.iterdir()) == sorted([str(going), str(pinned), "notes.txt"])
    assert [run["id"] for run in call("list", "--json", data_dir=tmp_path).document["items"]] == [pinned, going]


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert done.stdout.strip() == "[]"
