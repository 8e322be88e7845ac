"""Storage and sharing from the shell: exit codes, one JSON document, and written files."""

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app.cli.main import main
from app.clock import now
from app.schema import migrate
from app.settings import Settings
from tests.support.ended import end_run, make_result
from tests.support.quiet import quiet_logs
from trainer.contract.result import Check


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(data_dir=tmp_path / "data")
    migrate(made)
    return made


@dataclass(frozen=True, kw_only=True)
class Done:
    code: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command inside this process, on one data directory; starting an interpreter each time takes seconds."""
    for name in [name for name in os.environ if name.startswith("DDP_AUDIT_")]:
        monkeypatch.delenv(name)

    def run(data_dir: Path, *arguments: str) -> Done:
        monkeypatch.setenv("DDP_AUDIT_DATA_DIR", str(data_dir))
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        sys.stdout.flush()
        out, err = capfd.readouterr()
        quiet_logs()  # they were configured to write to a stream that ends with the test
        return Done(code=int(left.value.code or 0), stdout=out, stderr=err)

    return run


def answer(command: Command, data_dir: Path, *arguments: str, code: int = 0) -> Any:
    done = command(data_dir, *arguments, "--json")
    assert done.code == code, done.stderr
    return json.loads(done.stdout)


def test_backup_in_a_process_of_its_own(engine: Engine, settings: Settings, tmp_path: Path) -> None:
    end_run(engine, settings.runs_dir)
    argv = [sys.executable, "-m", "app.cli.main", "backup", str(tmp_path / "b.tar"), "--json"]
    environment = {**os.environ, "DDP_AUDIT_DATA_DIR": str(settings.data_dir)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"] == 1


def test_backup_travels_to_another_place(command: Command, engine: Engine, settings: Settings, tmp_path: Path) -> None:
    run_id = end_run(engine, settings.runs_dir, name="kept")
    made = answer(command, settings.data_dir, "backup", str(tmp_path / "b.tar"))
    assert (made["runs"], made["files"]) == (1, 2)
    assert command(settings.data_dir, "backup", str(tmp_path / "b.tar")).code == 2
    elsewhere = tmp_path / "elsewhere"
    assert answer(command, elsewhere, "restore", str(tmp_path / "b.tar"))["runs"] == 1
    assert answer(command, elsewhere, "show", str(run_id))["name"] == "kept"
    refused = command(elsewhere, "restore", str(tmp_path / "b.tar"))
    assert refused.code == 2
    assert "not empty" in refused.stderr
    (tmp_path / "b.tar").write_bytes(b"no tar")
    assert command(tmp_path / "third", "restore", str(tmp_path / "b.tar")).code == 2
    assert command(tmp_path / "third", "restore", str(tmp_path / "none.tar")).code == 6


def test_retention_lists_before_it_removes(command: Command, engine: Engine, settings: Settings) -> None:
    old = end_run(engine, settings.runs_dir, finished_at=now() - timedelta(days=31))
    listed = command(settings.data_dir, "retention", "--max-age-days", "30")
    assert listed.code == 0
    assert "--yes removes them" in listed.stdout
    assert (settings.runs_dir / str(old)).is_dir()
    done = answer(command, settings.data_dir, "retention", "--max-age-days", "30", "--yes")
    assert done["done"]["removed"] == [old]
    assert not (settings.runs_dir / str(old)).exists()
    assert command(settings.data_dir, "retention").code == 2


def test_orphans_are_a_finding(command: Command, settings: Settings) -> None:
    assert answer(command, settings.data_dir, "orphans")["items"] == []
    stranger = settings.runs_dir / "77"
    stranger.mkdir(parents=True)
    os.utime(stranger, (time.time() - 10_000,) * 2)
    assert answer(command, settings.data_dir, "orphans", code=1)["items"][0]["path"] == "runs/77"
    assert answer(command, settings.data_dir, "orphans", "--yes")["removed"] is True
    assert not stranger.exists()


def test_results_are_handed_over(command: Command, engine: Engine, settings: Settings, tmp_path: Path) -> None:
    bad = Check(name="bad", title="Bad", passed=False, measured=3.0, limit=2.0)
    run_id = str(end_run(engine, settings.runs_dir, make_result(bad)))
    xml = command(settings.data_dir, "junit", run_id)
    assert ET.fromstring(xml.stdout.encode())[0].attrib["failures"] == "1"
    written = answer(command, settings.data_dir, "page", run_id, "-o", str(tmp_path / "page.html"))
    assert written["bytes"] == (tmp_path / "page.html").stat().st_size > 5000
    assert "token-parity: fail" in command(settings.data_dir, "badge", "token-parity").stdout
    assert answer(command, settings.data_dir, "trends", "token-parity", "bad")["items"][0]["margin"] == 1.5
    assert command(settings.data_dir, "trends", "token-parity", "no").code == 6
    assert answer(command, settings.data_dir, "usage")["runs"] == 1
    assert answer(command, settings.data_dir, "deliveries")["items"][0]["status"] == "pending"
    assert answer(command, settings.data_dir, "redeliver", "1")["status"] == "pending"
    assert command(settings.data_dir, "junit", "99").code == 6
