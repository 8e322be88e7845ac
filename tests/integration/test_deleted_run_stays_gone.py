"""A deleted run never reappears: late writers fail, and none of them creates its folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app.cli.client import Client
from app.db import write_session
from app.host.processes import Identity
from app.runs import queue
from app.runs.models import Run
from app.runs.queue import UnknownRun
from app.runs.removal import delete_run, remove_folder
from app.settings import Settings
from app.storage.orphans import find_orphans
from tests.support.cli import Done, call, start
from tests.support.ended import end_run, make_result
from tests.support.results import every_panel
from tests.support.service import running_service
from tests.support.waiting import until
from trainer.common.checkpoints.identity import Identity as Belonging
from trainer.common.checkpoints.store import CheckpointStore
from trainer.common.telemetry import Telemetry
from trainer.contract.events import EventWriter
from trainer.contract.files import make_folder, write_bytes_atomically, write_json_atomically
from trainer.contract.paths import RunPaths
from worker import records
from worker.claim import Me
from worker.intake import LeaseLost

ME = Me(id="me", process=Identity(pid=1, start=1, boot="b"))


def drawn(engine: Engine, settings: Settings) -> int:
    """Return a run that has ended with a result of many panels."""
    return end_run(engine, settings.runs_dir, make_result(panels=every_panel()))


def left(settings: Settings) -> list[str]:
    """Return the entries of the runs directory."""
    return sorted(path.name for path in settings.runs_dir.iterdir())


def removing(engine: Engine, settings: Settings, run_id: int) -> None:
    delete_run(engine, settings, run_id, actor="test")


def test_figures_of_a_run_that_is_there_are_drawn(engine: Engine, settings: Settings) -> None:
    run_id = drawn(engine, settings)
    done = call("figures", str(run_id), data_dir=settings.data_dir)
    assert done.returncode == 0
    files = [Path(line) for line in done.stdout.split()]
    assert {path.parent for path in files} == {RunPaths(settings.runs_dir / str(run_id)).artifacts / "figures"}
    assert all(path.is_file() for path in files)


def test_figures_after_delete_make_nothing(engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = drawn(engine, settings)
    get = Client.get

    def get_and_lose(self: Client, path: str, **query: Any) -> Any:
        document = get(self, path, **query)
        if path.endswith("/result"):
            removing(engine, settings, run_id)
        return document

    monkeypatch.setattr(Client, "get", get_and_lose)
    done = call("figures", str(run_id), data_dir=settings.data_dir)
    assert_not_found(done, run_id)
    assert left(settings) == []


def test_figures_stop_where_the_run_goes(engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.figures import write

    run_id, encode = drawn(engine, settings), write._bytes
    encoded: list[str] = []

    def encode_and_lose(figure: Any, kind: str) -> bytes:
        encoded.append(kind)
        if len(encoded) == 3:
            removing(engine, settings, run_id)
        return encode(figure, kind)

    monkeypatch.setattr(write, "_bytes", encode_and_lose)
    assert_not_found(call("figures", str(run_id), data_dir=settings.data_dir), run_id)
    assert len(encoded) == 3
    assert left(settings) == []


def assert_not_found(done: Done, run_id: int) -> None:
    assert done.returncode == 6, done
    assert f"there is no run {run_id}" in done.stderr


@pytest.mark.sqlite
def test_real_race_of_figures_and_delete(engine: Engine, settings: Settings) -> None:
    with running_service(settings) as service:
        port = service.url.rsplit(":", 1)[1]
        for _ in range(3):
            run_id = drawn(engine, settings)
            figures = RunPaths(settings.runs_dir / str(run_id)).artifacts / "figures"
            process = start("figures", str(run_id), data_dir=settings.data_dir)
            try:
                until(figures.is_dir, "the first figure")
                gone = call("delete", str(run_id), "--yes", data_dir=settings.data_dir, DDP_AUDIT_PORT=port)
                _, told = process.communicate(timeout=60)
            finally:
                process.kill()
                process.wait()
            assert gone.returncode == 0, gone.stderr
            assert process.returncode in {0, 6}, told
            assert left(settings) == []


class Late:
    """A run whose folder is gone, and all writers into it."""

    def __init__(self, root: Path) -> None:
        self.paths = RunPaths(root)

    def events(self) -> None:
        EventWriter(self.paths.attempt("train", 1).events(0))

    def telemetry(self) -> None:
        Telemetry(self.paths.attempt("train", 1), 0)

    def result(self) -> None:
        make_result().save(self.paths.result)

    def config(self) -> None:
        write_json_atomically(self.paths.config, {})

    def artifact(self) -> None:
        write_bytes_atomically(self.paths.artifacts / "table.csv", b"x", within=self.paths.root)

    def checkpoint(self) -> None:
        identity = Belonging(kind="lab", config={}, data_lock="", world_size=1)
        CheckpointStore(self.paths.checkpoints(), identity)._open_aside(1)


WAYS: tuple[Callable[[Late], None], ...] = (
    Late.events,
    Late.telemetry,
    Late.result,
    Late.config,
    Late.artifact,
    Late.checkpoint,
)


@pytest.mark.parametrize("write", WAYS)
def test_late_writers_never_make_the_root(write: Callable[[Late], None], tmp_path: Path) -> None:
    late = Late(tmp_path / "runs" / "7")
    late.paths.root.mkdir(parents=True)
    if write is Late.events:
        late.paths.attempt("train", 1).events(0).parent.mkdir(parents=True)
    write(late)  # it works: the following fails because the folder is gone
    remove_folder(tmp_path / "runs", 7)
    with pytest.raises(FileNotFoundError):
        write(late)
    assert list((tmp_path / "runs").iterdir()) == []


def test_folders_are_made_below_what_is_there(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b", within=tmp_path)
    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(ValueError, match="subpath"):
        make_folder(tmp_path / "a", within=tmp_path / "b")
    with pytest.raises(FileNotFoundError):
        make_folder(tmp_path / "none", within=tmp_path / "none")


@pytest.fixture
def claimed(engine: Engine) -> int:
    with write_session(engine) as session:
        run = queue.insert_run(session, kind="token-parity", params={})
        session.flush()
        run.worker_id = ME.id
        return queue.number_of(run)


def test_worker_makes_the_folder_of_its_own_run_only(engine: Engine, settings: Settings, claimed: int) -> None:
    folder = settings.runs_dir / str(claimed)
    with pytest.raises(LeaseLost):
        records.make_run_folder(engine, claimed, Me(id="other", process=ME.process), folder)
    assert not folder.exists()
    records.make_run_folder(engine, claimed, ME, folder)
    assert folder.is_dir()


@pytest.mark.parametrize("deleted", [False, True])
def test_worker_that_slept_brings_no_run_back(
    engine: Engine, settings: Settings, claimed: int, *, deleted: bool
) -> None:
    folder = settings.runs_dir / str(claimed)
    with write_session(engine) as session:
        run = session.get(Run, claimed)
        assert run is not None
        run.state = "cancelled"
    settings.runs_dir.mkdir(parents=True, exist_ok=True)
    if deleted:
        removing(engine, settings, claimed)
    with pytest.raises(UnknownRun if deleted else LeaseLost):
        records.make_run_folder(engine, claimed, ME, folder)
    assert left(settings) == []


def test_half_removed_folder_is_found(engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = drawn(engine, settings)

    def broken(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("app.runs.removal.shutil.rmtree", broken)
        with pytest.raises(KeyboardInterrupt):
            removing(engine, settings, run_id)
    monkeypatch.setattr("app.storage.orphans.QUIET_SECONDS", -1.0)  # it was not ten minutes ago
    assert [(item.what, item.path.name) for item in find_orphans(engine, settings)] == [
        ("set_aside", f".deleted-{run_id}.part")
    ]
    removing(engine, settings, run_id)
    assert left(settings) == []
