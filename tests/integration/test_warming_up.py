"""`ddp-audit run` has torch imported while it imports its modules: only if it runs the ranks, and never left over."""

import threading
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import col, update

from app.cli.client import close_clients, open_client
from app.cli.exits import CommandError
from app.cli.inline import executing, warming_up
from app.db import read_session, write_session
from app.host.processes import Identity
from app.runs.models import Run
from app.runs.workers import live_workers
from app.settings import Settings
from tests.support.waiting import until
from tests.support.worker_lab import open_lab
from worker.executors.choose import make_executor
from worker.executors.local.executor import LocalExecutor
from worker.loop import Worker


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DDP_AUDIT_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("DDP_AUDIT_HOST", raising=False)
    monkeypatch.delenv("DDP_AUDIT_PORT", raising=False)
    return tmp_path


def assert_gone(process: Identity) -> None:
    until(lambda: not process.alive, "the end of the template", 10)


@pytest.mark.usefixtures("here")
def test_template_ends_with_the_command() -> None:
    with warming_up() as starter:
        assert starter is not None
        process = starter.template_process()
        assert process is not None
        assert process.alive
    assert_gone(process)


@pytest.mark.usefixtures("here")
def test_template_ends_if_the_run_is_refused() -> None:
    seen: list[Identity | None] = []

    def refused() -> None:
        with warming_up() as starter:
            assert starter is not None
            seen.append(starter.template_process())
            open_client().post("/runs", {"kind": "no-such-kind", "params": {}})

    try:
        with pytest.raises(CommandError, match="no-such-kind"):
            refused()
    finally:
        close_clients()
    assert seen[0] is not None
    assert_gone(seen[0])


@pytest.mark.parametrize(
    "variables",
    [{"DDP_AUDIT_PORT": "1"}, {"DDP_AUDIT_EXECUTOR": "slurm"}, {"DDP_AUDIT_WARM_START": "false"}],
    ids=["a service", "a cluster", "switched off"],
)
def test_nothing_is_started_for_others(here: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, Any]) -> None:
    for name, value in {**variables, "DDP_AUDIT_RUNS_DIR": str(here / "runs")}.items():
        monkeypatch.setenv(name, value)
    with warming_up() as starter:
        assert starter is None or starter.template_process() is None


def test_invalid_setting_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDP_AUDIT_HANG_SECONDS", "never")
    with pytest.raises(CommandError, match="DDP_AUDIT_HANG_SECONDS"), warming_up():
        pass
    assert list(here.iterdir()) == []


def test_executor_takes_the_template_over(here: Path) -> None:
    with warming_up() as starter:
        assert starter is not None
        executor = make_executor(Settings(data_dir=here), starter)
        assert isinstance(executor, LocalExecutor)
        process = starter.template_process()
        executor.close()
        assert process is not None
        assert_gone(process)


@pytest.mark.usefixtures("here")
def test_live_worker_leaves_it_without_work(tmp_path: Path) -> None:
    with open_lab(tmp_path) as lab, warming_up() as starter:
        assert starter is not None
        process = starter.template_process()
        assert process is not None
        worker = lab.worker()
        try:
            client = open_client()

            def lives() -> bool:
                with read_session(lab.engine) as session:
                    return bool(live_workers(session))

            lab.until(lives, "a worker")
            run_id = lab.submit(launcher="python", meeting="none")
            with executing(client, run_id, starter):
                assert_gone(process)
                assert lab.finished(run_id).state == "succeeded"
        finally:
            close_clients()
        assert worker.poll() is None


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("ends", [True, False])
def test_worker_that_is_gone_matters_only_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    def run_single(worker: Worker, run_id: int) -> None:
        if ends:
            with write_session(lab.engine) as session:
                session.exec(update(Run).where(col(Run.id) == run_id).values(state="failed"))
        worker._let_go()

    monkeypatch.setattr(Worker, "run_single", run_single)
    with open_lab(tmp_path) as lab:
        try:
            run_id = lab.submit()
            with executing(open_client(), run_id) as check:
                lab.until(lambda: not any(thread.name == "worker" for thread in threading.enumerate()), "its end")
                if ends:
                    check()
                else:
                    with pytest.raises(CommandError, match="stopped before the run ended"):
                        check()
        finally:
            close_clients()
