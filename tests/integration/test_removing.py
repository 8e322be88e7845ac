"""Removing runs and orphans concurrently, from folders that resist, and with unexpected names."""

import errno
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import mkdtemp
from typing import TypeVar

import pytest
from sqlalchemy import Engine
from sqlmodel import col, select

from app.db import read_session
from app.runs.errors import Conflict, NotFound
from app.runs.models import AuditEntry, Run
from app.runs.removal import delete_run, finish_deletions, remove_path
from app.schema import migrate
from app.settings import Settings
from app.storage.orphans import QUIET_SECONDS, find_orphans, orphan_list, plan_of, remove_orphans
from tests.support.ended import end_run

NOBODY = 65_534
Answer = TypeVar("Answer")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(data_dir=tmp_path / "data")
    migrate(made)
    made.runs_dir.mkdir(parents=True, exist_ok=True)
    return made


def folder_of_files(root: Path, count: int = 300) -> Path:
    root.mkdir(parents=True)
    for number in range(count):
        (root / str(number)).write_bytes(b"x")
    age(root)
    return root


def age(root: Path) -> None:
    long_ago = time.time() - QUIET_SECONDS - 60
    for path in (root, *root.rglob("*")):
        os.utime(path, (long_ago, long_ago))


def at_once(count: int, call: Callable[[], Answer]) -> list[Answer]:
    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(call) for _ in range(count)]]


def states(engine: Engine) -> dict[int | None, bool]:
    with read_session(engine) as session:
        return {run.id: run.deleting for run in session.exec(select(Run))}


def test_each_orphan_goes_once(engine: Engine, settings: Settings) -> None:
    for number in range(70, 78):
        folder_of_files(settings.runs_dir / str(number))
    folder_of_files(settings.runs_dir / ".replaced-x")

    def remove() -> list[Path]:
        try:
            return [item.path for item in remove_orphans(engine, settings, seen=seen)]
        except Conflict:
            return []

    seen = plan_of(find_orphans(engine, settings))
    taken = [path for paths in at_once(6, remove) for path in paths]
    assert sorted(path.name for path in taken) == [".replaced-x", *map(str, range(70, 78))]
    assert list(settings.runs_dir.iterdir()) == []
    with read_session(engine) as session:
        told = session.exec(select(AuditEntry.detail).where(col(AuditEntry.action) == "remove_orphans")).all()
    assert sum(int(text.split()[0]) for text in told) == 9


def test_run_is_deleted_once(engine: Engine, settings: Settings) -> None:
    for _ in range(4):
        run_id = end_run(engine, settings.runs_dir)
        folder_of_files(settings.runs_dir / str(run_id) / "artifacts" / "many")

        def remove(number: int = run_id) -> bool:
            try:
                delete_run(engine, settings, number, actor="test")
            except NotFound:
                return False
            return True

        assert any(at_once(6, remove))
        assert not (settings.runs_dir / str(run_id)).exists()
    assert states(engine) == {}


def test_folder_moved_there_after_the_look_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, aside, look = folder_of_files(tmp_path / "1", 3), tmp_path / "aside", Path.is_dir

    def look_and_move(path: Path) -> bool:
        found = look(path)
        if path == aside and folder.exists():
            folder.rename(aside)
        return found

    monkeypatch.setattr(Path, "is_dir", look_and_move)
    remove_path(aside)
    assert list(tmp_path.iterdir()) == []


def test_pin_wins_over_a_policy(engine: Engine, settings: Settings) -> None:
    run_id = end_run(engine, settings.runs_dir, pinned=True)
    with pytest.raises(Conflict, match="has been pinned"):
        delete_run(engine, settings, run_id, actor="test", spare_pinned=True)
    assert states(engine) == {run_id: False}
    delete_run(engine, settings, run_id, actor="test")
    assert states(engine) == {}


def test_closed_folder_is_opened() -> None:
    root = Path(mkdtemp())  # pytest's own folders are closed to other users
    deep = root / "run" / "closed" / "deep"
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"x")
    (root / "run" / "link").symlink_to(root / "kept")
    (root / "kept").mkdir(mode=0o500)
    for path in (root, *root.rglob("*")):
        os.chown(path, NOBODY if os.geteuid() == 0 else -1, -1, follow_symlinks=False)
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)  # file modes do not apply to root
    try:
        (root / "run" / "closed").chmod(0)
        with pytest.raises(PermissionError):
            shutil.rmtree(root / "run")
        remove_path(root / "run")
        assert [path.name for path in root.iterdir()] == ["kept"]
        assert (root / "kept").stat().st_mode & 0o777 == 0o500
    finally:
        os.seteuid(before)
        shutil.rmtree(root)


def test_files_that_stay_stop_no_start(engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_arguments: object, **_named: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy", "/some/where")

    stuck, other = end_run(engine, settings.runs_dir), end_run(engine, settings.runs_dir)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", busy)
        for run_id in (stuck, other):
            with pytest.raises(Conflict, match=r"not all of its files: Device or resource busy$"):
                delete_run(engine, settings, run_id, actor="test")
        assert finish_deletions(engine, settings) == 0
    assert states(engine) == {stuck: True, other: True}
    assert finish_deletions(engine, settings) == 2
    assert states(engine) == {}


def test_orphan_that_stays_is_no_removal(engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (folder_of_files(settings.runs_dir / name, 1) for name in ("70", "71"))
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path == first:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    assert [item.path for item in remove_orphans(engine, settings)] == [second]
    assert first.is_dir()
    assert not second.exists()


def test_numbers_no_run_can_have(engine: Engine, settings: Settings) -> None:
    for name in ("9223372036854775808", "9" * 200, "9223372036854775807"):
        folder_of_files(settings.runs_dir / name, 1)
    assert [item["path"] for item in orphan_list(engine, settings)["items"]] == ["runs/9223372036854775807"]


def test_work_deep_inside_is_not_quiet(engine: Engine, settings: Settings) -> None:
    staging = folder_of_files(settings.runs_dir / ".restore-x" / "runs" / "1", 2)
    age(settings.runs_dir)
    (staging / "1").write_bytes(b"being unpacked")
    os.utime(staging, (0, 0))
    assert find_orphans(engine, settings) == []
    age(settings.runs_dir)
    assert [item.what for item in find_orphans(engine, settings)] == ["set_aside"]


def test_names_that_are_no_text(engine: Engine, settings: Settings) -> None:
    run_id = end_run(engine, settings.runs_dir)
    stray = os.fsencode(settings.runs_dir / str(run_id)) + b"/.\xff.part"
    Path(os.fsdecode(stray)).write_bytes(b"x")
    os.utime(stray, (0, 0))
    found = orphan_list(engine, settings)
    assert [item["path"] for item in found["items"]] == [rf"runs/{run_id}/.\xff.part"]
    remove_orphans(engine, settings, seen=found["plan"])
    assert not os.path.exists(stray)  # noqa: PTH110  # a path of bytes
