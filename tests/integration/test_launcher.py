"""The launcher reports how every rank ended, for any cause, and stores its last output."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.stages import ROOT
from tests.support.waiting import until
from trainer.common.process import PARENT_VARIABLE
from trainer.contract.paths import AttemptPaths
from trainer.launch import endpoint_problem

pytestmark = pytest.mark.torchrun
RANK = """
import os, signal, sys, time
rank, mode = os.environ["RANK"], sys.argv[1]
if mode in ("tied", "left"):
    from trainer.common.process import die_with_parent
    die_with_parent()
if mode == "saved":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(65))
open(f"{sys.argv[2]}.{rank}", "w").write(str(os.getpid()))
sys.stdout.write(f"words of rank {rank}")
if mode == "well" or (mode in ("early", "left") and rank == "1"):
    sys.exit(0)
if rank == "1":
    if mode == "code":
        sys.stderr.write("about to leave\\n")
        os._exit(3)
    if mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "raised":
        raise ValueError("no such luck")
if mode == "early":
    sys.exit(5)
time.sleep(60)
"""


class Launch:
    """One launcher with two ranks of the script above."""

    def __init__(self, folder: Path, mode: str, *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rank_script.py").write_text(RANK)
        self.paths = AttemptPaths(folder / "attempt")
        self.marks = folder / "pid"
        argv = ["--attempt-dir", str(self.paths.root), "--nproc", "2", "--module", "rank_script", *options]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainer.launch", *argv, "--", mode, str(self.marks)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(folder), "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def pids(self) -> list[int]:
        """Wait for both ranks and return their process ids."""
        files = [Path(f"{self.marks}.{rank}") for rank in (0, 1)]
        until(lambda: all(file.exists() and file.read_text() for file in files), "both ranks start")
        return [int(file.read_text()) for file in files]

    def end(self) -> tuple[int, dict[str, Any]]:
        """Wait for the launcher and return its exit code and its report."""
        self.process.communicate(timeout=90)
        report: dict[str, Any] = json.loads(self.paths.ranks_exit.read_text())
        return self.process.returncode, report


def _ends(report: dict[str, Any]) -> list[tuple[int | None, int | None]]:
    return [(rank["exit_code"], rank["signal"]) for rank in report["ranks"]]


def test_good_ranks_are_reported_too(tmp_path: Path) -> None:
    launch = Launch(tmp_path, "well")
    code, report = launch.end()
    assert (code, _ends(report), report["launcher_error"]) == (0, [(0, None), (0, None)], None)
    assert [rank["pid"] for rank in report["ranks"]] == launch.pids()
    assert launch.paths.log(1, "stdout").read_text() == "words of rank 1"
    assert not list(tmp_path.glob("torchelastic_*"))


@pytest.mark.parametrize(
    ("mode", "end", "words"),
    [
        ("code", (3, None), "about to leave"),
        ("killed", (None, 9), None),
        ("raised", (1, None), "ValueError: no such luck"),
    ],
)
def test_dying_rank_is_told_first(
    tmp_path: Path, mode: str, end: tuple[int | None, int | None], words: str | None
) -> None:
    launch = Launch(tmp_path, mode)
    code, report = launch.end()
    assert code == 1
    assert _ends(report) == [(None, signal.SIGTERM), end]
    assert report["ranks"][1]["error"] == words
    assert report["ranks"][1]["ended_at"] <= report["ranks"][0]["ended_at"]
    if mode != "killed":  # a killed process cannot flush its buffers; unbuffered output is torchrun's
        assert "words of rank 1" in launch.paths.log(1, "stdout").read_text()


def test_early_good_end_is_visible(tmp_path: Path) -> None:
    code, report = Launch(tmp_path, "early").end()
    assert code == 1
    assert _ends(report) == [(5, None), (0, None)]


def test_end_is_known_although_the_launcher_is_killed(tmp_path: Path) -> None:
    launch = Launch(tmp_path, "left")
    launch.pids()
    until(launch.paths.ranks_exit.exists, "a report of the rank that ended")
    launch.process.kill()
    _, report = launch.end()
    assert _ends(report) == [(None, None), (0, None)]


def test_ranks_that_saved_end_with_65(tmp_path: Path) -> None:
    launch = Launch(tmp_path, "saved")
    launch.pids()
    launch.process.terminate()
    code, report = launch.end()
    assert (code, _ends(report)) == (65, [(65, None), (65, None)])
    assert report["launcher_signal"] == signal.SIGTERM


def test_no_rank_outlives_the_launcher(tmp_path: Path) -> None:
    launch = Launch(tmp_path, "tied")
    pids = launch.pids()
    launch.process.kill()
    launch.process.communicate()
    until(lambda: not any(map(alive, pids)), "the death of every rank")


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_orphan_refuses_to_start() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from trainer.common.process import die_with_parent; die_with_parent()"],
        env={**os.environ, PARENT_VARIABLE: "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the launcher (pid 1) ended before this rank started" in done.stderr


@contextmanager
def _held_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_busy_port_is_a_launch_error(tmp_path: Path) -> None:
    with _held_port() as port:
        launch = Launch(tmp_path, "well", "--endpoint", f"127.0.0.1:{port}")
        code, report = launch.end()
    assert code == 70
    assert report["ranks"] == []
    assert f"port {port} on 127.0.0.1 cannot be used" in report["launcher_error"]


def test_unresolvable_host_is_a_launch_error(tmp_path: Path) -> None:
    code, report = Launch(tmp_path, "well", "--endpoint", "no-such-host.invalid:1234").end()
    assert code == 70
    assert "host name 'no-such-host.invalid' cannot be resolved" in report["launcher_error"]


def test_free_endpoint_has_no_problem() -> None:
    assert endpoint_problem("127.0.0.1:0") is None
    assert endpoint_problem("nonsense") == "endpoint 'nonsense' is not host:port"
