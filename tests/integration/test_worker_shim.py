"""The supervisor alone: its report on a process, which processes it ends, and that two never run one attempt."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.host import processes
from app.settings import Settings
from tests.support.waiting import until
from trainer.contract.paths import AttemptPaths
from worker.executors.base import Fate, Phase, Status
from worker.executors.local.executor import LocalExecutor
from worker.executors.local.handle import LocalHandle
from worker.executors.local.shim import EXIT_TAKEN
from worker.marker import MARKER
from worker.plan import AttemptPlan

FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(['sleep', '600'], start_new_session=True)
stopped = subprocess.Popen(['sleep', '600'], start_new_session=True)
os.kill(stopped.pid, signal.SIGSTOP)
print('ready', flush=True)
time.sleep(600)
"""


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[LocalExecutor]:
    made = LocalExecutor(Settings(data_dir=tmp_path, warm_start=False))
    yield made
    made.close()


@pytest.fixture
def start(tmp_path: Path, executor: LocalExecutor) -> Iterator[Any]:
    handles: list[LocalHandle] = []

    def begin(code: str, grace: float = 1.0) -> tuple[LocalHandle, AttemptPaths]:
        handle = executor.start(plan(tmp_path, code, grace))
        handles.append(handle)
        return handle, AttemptPaths(tmp_path / "attempt_1")

    yield begin
    for handle in handles:
        handle.destroy()
        handle.close()


def plan(root: Path, code: str, grace: float = 1.0) -> AttemptPlan:
    marker = f"shim-test:{root}"
    return AttemptPlan(
        run_id=1,
        stage="s",
        attempt=1,
        launcher="python",
        ranks=1,
        imports="nothing",
        command=("-c", code),
        environment={"DDP_AUDIT_MARKER": marker},
        cwd=root,
        paths=AttemptPaths(root / "attempt_1"),
        marker=marker,
        grace_seconds=grace,
    )


def report(handle: LocalHandle, paths: AttemptPaths) -> dict[str, Any]:
    until_ended(handle)
    document: dict[str, Any] = json.loads(paths.exit.read_text())
    return document


def wait_for(path: Path, text: str) -> None:
    until(lambda: path.exists() and text in path.read_text(), f"{text!r} in {path.name}")


def test_exit_code_and_output_are_kept(start: Any) -> None:
    handle, paths = start("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    found = report(handle, paths)
    assert (found["main"]["exit_code"], found["main"]["signal"]) == (7, None)
    assert [(rank["rank"], rank["exit_code"], rank["signal"]) for rank in found["ranks"]] == [(0, 7, None)]
    assert found["first"]["rank"] == 0
    assert found["stop"]["asked"] is False
    assert paths.log(0, "stdout").read_text() == "out\n"
    assert paths.log(0, "stderr").read_text() == "err\n"
    assert handle.status() == Status(phase=Phase.ENDED)


def test_signal_is_kept_apart(start: Any) -> None:
    found = report(*start("import os; os.kill(os.getpid(), 11)"))
    assert (found["ranks"][0]["exit_code"], found["ranks"][0]["signal"]) == (None, 11)


def test_stop_ends_deaf_and_stopped(start: Any) -> None:
    handle, paths = start(FAMILY)
    wait_for(paths.log(0, "stdout"), "ready")
    asked = time.time()
    handle.stop()
    handle.stop()
    found = report(handle, paths)
    assert found["stop"]["killed_at"] - asked > 0.9  # not before the grace of one second
    assert found["stop"]["cause"] == "term"
    assert found["stop"]["processes_ended"] == 3
    assert found["stop"]["processes_left"] == 0
    assert found["ranks"][0]["signal"] == 9
    assert not processes.carrying(MARKER, found["marker"])


def test_folder_removed_under_it_is_told_and_not_made_again(start: Any) -> None:
    code = "import os, time; print('ready', flush=True)\nwhile os.path.exists('attempt_1'): time.sleep(0.01)"
    handle, paths = start(code)
    wait_for(paths.log(0, "stdout"), "ready")
    shutil.rmtree(paths.root)
    until_ended(handle)
    assert handle.status().fate is Fate.GONE
    assert not paths.root.exists()


def test_helpers_do_not_outlive_the_process(start: Any) -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    found = report(*start(code))
    assert found["main"]["exit_code"] == 0
    assert found["stop"]["processes_ended"] == 1
    assert not processes.carrying(MARKER, found["marker"])


def test_program_that_is_missing_is_told(tmp_path: Path) -> None:
    executor = LocalExecutor(Settings(data_dir=tmp_path, warm_start=False), interpreter="/no/such/program")
    broken = plan(tmp_path, "")
    handle = executor.start(broken)
    found = report(handle, broken.paths)
    handle.close()
    executor.close()
    assert "No such file" in found["launch_error"]
    assert found["ranks"] == []


def test_second_supervisor_steps_back(start: Any) -> None:
    handle, paths = start("import time; time.sleep(600)")
    wait_for(paths.shim, "pid")
    before = paths.shim.read_text()
    second = subprocess.run([sys.executable, "-m", "worker.executors.local.shim", str(paths.plan)], check=False)
    assert second.returncode == EXIT_TAKEN
    assert paths.shim.read_text() == before
    assert handle.status().phase is Phase.RUNNING
    assert not paths.exit.exists()


def test_attached_handle_is_the_same_process(start: Any, tmp_path: Path, executor: LocalExecutor) -> None:
    handle, paths = start("import time; time.sleep(600)")
    wait_for(paths.shim, "pid")
    again = executor.attach(plan(tmp_path, ""), None)
    assert again.status().phase is Phase.RUNNING
    assert again.reference() == handle.reference()
    again.close()
    foreign = executor.attach(replace(plan(tmp_path, ""), marker="another:marker"), None)
    assert foreign.status().fate is Fate.LOST
    handle.identity.send(signal.SIGKILL)
    assert until_ended(handle) == Status(phase=Phase.ENDED, fate=Fate.LOST, processes_ended=1)
    assert not processes.carrying(MARKER, handle.plan.marker)
    assert executor.attach(plan(tmp_path, ""), None).status() == Status(phase=Phase.ENDED, fate=Fate.LOST)


def until_ended(handle: LocalHandle) -> Status:
    until(lambda: handle.status().phase is Phase.ENDED, "the end of the attempt")
    return handle.status()


def test_attempt_that_never_began_is_absent(
    tmp_path: Path, executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = executor.attach(plan(tmp_path, ""), None)
    assert handle.status().phase is Phase.LOOKING
    monkeypatch.setattr("worker.executors.local.handle.SHIM_START_SECONDS", 0.0)
    assert handle.status().phase is Phase.ABSENT


def test_supervisor_of_another_boot_is_gone(start: Any, tmp_path: Path, executor: LocalExecutor) -> None:
    handle, paths = start("import time; time.sleep(600)")
    wait_for(paths.shim, "pid")
    paths.shim.write_text(json.dumps({**json.loads(paths.shim.read_text()), "boot": "yesterday"}))
    assert executor.attach(plan(tmp_path, ""), None).status().fate is Fate.REBOOTED
    assert handle.status().phase is Phase.RUNNING
