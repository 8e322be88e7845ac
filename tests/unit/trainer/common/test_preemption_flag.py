"""SIGTERM as a flag: seen while the main thread waits, acknowledged or not."""

import subprocess
import sys
import time

WAITING = """
import ctypes, signal, sys
from trainer.common.preemption import PreemptionFlag
with PreemptionFlag(patience=0.3) as flag:
    print("ready", flush=True)
    {body}
print("left", flag.requested, flush=True)
"""
LOOP = "while not flag.requested: pass\n    flag.acknowledge()\n    import time; time.sleep(0.6)"
TURNS = "import time; flag.turned(); time.sleep(0.5); flag.turned()"
RELEASED = "ctypes.CDLL(None).pause(); ctypes.CDLL(None).sleep(20)"  # releases the GIL, like a collective


def _terminated(body: str) -> tuple[int, str, float]:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING.format(body=body)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    began = time.monotonic()
    process.terminate()
    out, err = process.communicate(timeout=30)
    return process.returncode, out + err, time.monotonic() - began


def test_acknowledged_request_is_left_alone() -> None:
    code, text, _ = _terminated(LOOP)
    assert (code, text) == (0, "left True\n")


def test_blocked_rank_gives_up_by_itself() -> None:
    code, text, seconds = _terminated(RELEASED)
    assert code == 143
    assert "gave up after 0.3 s" in text
    assert seconds < 10


def test_long_turns_are_given_time() -> None:
    lines = f"{TURNS}\n    print('turned', flush=True)\n    import os; os.kill(os.getpid(), signal.SIGTERM)"
    slow, stuck = (f"{lines}\n    time.sleep({seconds})\n    flag.acknowledge()" for seconds in (0.7, 30))
    ended = [
        subprocess.run([sys.executable, "-c", WAITING.format(body=body)], capture_output=True, text=True, check=False)
        for body in (slow, stuck)
    ]
    assert [process.returncode for process in ended] == [0, 143]
    assert "gave up after 1" in ended[1].stderr  # twice the turn of half a second, not the 0.3 s asked for


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
