"""SIGTERM as a flag: seen while the main thread waits, acknowledged or not."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.support.waiting import until
from trainer.common.preemption import PATIENCE_TURNS, PreemptionFlag

WAITING = """
import ctypes, signal, sys
from trainer.common.preemption import PreemptionFlag
with PreemptionFlag(patience=0.3) as flag:
    print("ready", flush=True)
    {body}
print("left", flag.requested, flush=True)
"""
WATCHERS = "[thread for thread in threading.enumerate() if thread.name == 'preemption']"
LOOP = f"while not flag.requested: pass\n    flag.acknowledge()\n    import threading; {WATCHERS}[0].join()"
RELEASED = "ctypes.CDLL(None).pause(); ctypes.CDLL(None).sleep(20)"  # releases the GIL, like a collective


def _terminated(body: str) -> tuple[int, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING.format(body=body)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def test_acknowledged_request_is_left_alone() -> None:
    # The watcher ends without ending the process; otherwise the join would wait until it does.
    assert _terminated(LOOP) == (0, "left True\n")


def test_blocked_rank_gives_up_by_itself() -> None:
    code, text = _terminated(RELEASED)
    assert code == 143
    assert "gave up after 0.3 s" in text
    assert "left" not in text


class Acknowledged(threading.Event):
    """Records the timeout of a wait, and is acknowledged at once."""

    def __init__(self) -> None:
        super().__init__()
        self.patience: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.patience.append(timeout)
        return True


@pytest.mark.parametrize(("turn", "patience"), [(30.0, PATIENCE_TURNS * 30.0), (0.1, 0.3)])
def test_long_turns_are_given_time(monkeypatch: pytest.MonkeyPatch, turn: float, patience: float) -> None:
    time = [1000.0]
    monkeypatch.setattr("trainer.common.preemption.time.monotonic", lambda: time[0])
    with PreemptionFlag(patience=0.3) as flag:
        noted = flag._acknowledged = Acknowledged()
        for seconds in (0.0, turn, 0.01):  # a short turn after a long one does not reduce it
            time[0] += seconds
            flag.turned()
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: noted.patience, "the watcher waits")
        assert flag.requested
    assert noted.patience == [pytest.approx(patience)]


def test_stuck_rank_gives_up_after_its_longest_turn() -> None:
    turns = (
        "from unittest.mock import patch\n"
        "    with patch('trainer.common.preemption.time.monotonic', side_effect=[0.0, 0.5]):\n"
        "        flag.turned(); flag.turned()\n"
    )
    body = f"{turns}    import os; os.kill(os.getpid(), signal.SIGTERM)\n    {RELEASED}"
    done = subprocess.run(
        [sys.executable, "-c", WAITING.format(body=body)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 143
    assert "gave up after 1 s" in done.stderr  # twice the turn of half a second, not the requested 0.3 s


def test_no_signal_leaves_no_trace() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAITING.format(body="pass")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "ready\nleft False\n"


def test_own_failure_passes_through() -> None:
    body = "raise KeyError('own fault')"
    done = subprocess.run(
        [sys.executable, "-c", WAITING.format(body=body)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "own fault" in done.stderr
