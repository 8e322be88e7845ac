"""Directories with long names or names that are special in URLs: everything is written inside them and nowhere else."""

import subprocess
from pathlib import Path

import pytest

from app.settings import Settings
from tests.support.cli import COMMAND, call, environment
from tests.support.service import running_service

NAMES = ["p%20q", "w?x", "a#b", "s p", "ü", "it's", 'say "x"', "q=1&r=2", "%", "x:y@z"]


@pytest.mark.parametrize("name", NAMES)
def test_database_is_made_where_it_was_asked_for(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    with running_service(Settings(data_dir=folder)) as service:
        assert service.post("/runs", {"kind": "token-parity"}).status_code == 201
        assert service.get("/usage").json()["database_bytes"] > 0
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (folder / "ddp-audit.db").stat().st_size > 0
    listed = call("list", "--json", data_dir=folder)
    assert len(listed.document["items"]) == 1
    backup = tmp_path / "backup.tar"
    assert call("backup", str(backup), data_dir=folder).returncode == 0
    restored = tmp_path / f"{name} restored"
    assert call("restore", str(backup), data_dir=restored).returncode == 0
    assert len(call("list", "--json", data_dir=restored).document["items"]) == 1


@pytest.mark.torchrun
def test_run_passes_in_an_odd_place(tmp_path: Path) -> None:
    data_dir = tmp_path / f"{'d' * 100} %20ü'?x"
    temporary = tmp_path / ("t" * 200)
    temporary.mkdir()
    argv = [str(COMMAND), "run", "token-parity"]
    done = subprocess.run(
        argv,
        env=environment(data_dir, {"TMPDIR": str(temporary)}),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([data_dir.name, temporary.name])
    assert list(temporary.iterdir()) == []
