"""The GPU tool's lines are read as they arrive; a machine without the tool has no numbers and no error."""

import os
import time
from pathlib import Path

import pytest

from tests.support.waiting import until
from worker.executors.local.gpus import MIB, GpuUse, GpuWatch, parse
from worker.executors.local.ranks_seen import by_rank


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("GPU-aaa, 1024, 87", ("aaa", GpuUse(bytes=1024 * MIB, percent=87.0))),
        ("GPU-aaa, 0, [N/A]", ("aaa", GpuUse(bytes=0, percent=None))),
        ("GPU-aaa, [N/A], 3", None),
        ("GPU-aaa, 5", None),
        ("no devices were found", None),
        ("", None),
    ],
)
def test_tool_lines_are_understood(line: str, expected: object) -> None:
    assert parse(line) == expected


def tool(folder: Path, body: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_running_tool_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", tool(tmp_path, 'echo "GPU-bbb, 2048, 50"; echo "GPU-zzz, 1, 1"; exec sleep 60'))
    watch = GpuWatch(lambda: {"bbb": 1})
    found = until(watch.now, "numbers of the tool")
    assert found == {1: GpuUse(bytes=2048 * MIB, percent=50.0)}
    ranks = {0: "cuda:1", 1: "cuda:0", 2: "cpu"}
    assert by_rank(ranks, found) == {0: found[1]}
    watch.close()
    watch.close()


def test_missing_tool_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    watch = GpuWatch(lambda: {"bbb": 1})
    assert watch.now() == {}
    watch.close()


def test_old_numbers_are_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", tool(tmp_path, 'echo "GPU-bbb, 2048, 50"; exec sleep 60'))
    watch = GpuWatch(lambda: {"bbb": 0})
    until(watch.now, "numbers of the tool")
    now = time.monotonic()
    monkeypatch.setattr("worker.executors.local.gpus.time.monotonic", lambda: now + 60)
    assert watch.now() == {}
    watch.close()
