"""Processes by pid and start time: none is confused with another, and none with a marker is missed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from app.host import processes
from app.host.processes import Identity
from tests.support.waiting import until
from worker.marker import MARKER

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(*argv: str, **environment: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(argv, env={**os.environ, **environment}, start_new_session=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


def identity(process: "subprocess.Popen[bytes]") -> Identity:
    found = Identity.of(process.pid)
    assert found is not None
    return found


def test_zombie_counts_as_gone(start: Start) -> None:
    process = start("sleep", "60")
    this = identity(process)
    assert this.alive
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet reaped
    corpse = this.stat()
    assert corpse is not None
    assert processes.exit_of(corpse.wait_status) == (None, 9)
    assert not replace(this).alive  # a copy: a type checker assumes that the first is still alive


def test_reused_pid_is_another_process(start: Start) -> None:
    process = start("sleep", "60")
    this = identity(process)
    for other in (replace(this, start=this.start - 1), replace(this, boot="before the reboot")):
        assert not other.alive
        assert not other.send(signal.SIGTERM)
    assert this.send(signal.SIGKILL)
    assert process.wait(60) == -9  # the first deadly signal counts, and that was not the TERM


def test_marker_must_match_exactly(start: Start) -> None:
    markers = (
        {"DDP_AUDIT_MARKER": "db:1:train:1"},
        {"DDP_AUDIT_MARKER": "db:1:train:11"},
        {"NOT_DDP_AUDIT_MARKER": "DDP_AUDIT_MARKER=db:1:train:1"},
    )
    started = [start("sleep", "60", WHO="sleeper", **marker) for marker in markers]
    mine = started[0]
    # A process has its own environment from its exec on.
    until(lambda: all("WHO" in processes.environment_of(item.pid) for item in started), "every exec")
    assert [item.pid for item in processes.carrying(MARKER, "db:1:train:1")] == [mine.pid]
    assert processes.environment_of(mine.pid)["DDP_AUDIT_MARKER"] == "db:1:train:1"


def test_stopped_process_dies_of_kill(start: Start) -> None:
    process = start("sleep", "60")
    os.kill(process.pid, signal.SIGSTOP)
    assert processes.kill_all([identity(process)]) == 1
    assert process.wait(60) == -9


def test_descendants_in_own_sessions_found(start: Start) -> None:
    code = "import subprocess,time;subprocess.Popen(['sleep','60'],start_new_session=True);time.sleep(60)"
    process = start(sys.executable, "-c", code)
    found = until(lambda: processes.children(process.pid), "the child")
    assert len(found) == 1
    assert os.getsid(found[0].pid) != os.getsid(process.pid)
    os.kill(found[0].pid, signal.SIGKILL)


def test_descriptor_of_dead_process_is_none(start: Start) -> None:
    process = start("sleep", "60")
    this = identity(process)
    process.kill()
    process.wait()
    assert this.open() is None
    assert processes.stat(process.pid) is None
