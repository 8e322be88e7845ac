"""Output of nvidia-smi and control groups is parsed correctly; a failed probe does not mean a machine without GPUs."""

import os
import sys
from pathlib import Path

import pytest

from app.settings import Settings
from tests.support.waiting import until
from worker.executors.local.devices import LocalDevices, in_use
from worker.executors.local.memory import oom_kills
from worker.executors.local.warm import Starter

UUIDS = {"aaa": 0, "bbb": 1, "ccc": 2}


def test_foreign_use_makes_a_gpu_busy() -> None:
    memory = "GPU-aaa, 4\nGPU-bbb, 30000\nGPU-ccc, 600\nGPU-ddd, 90000\n"
    assert in_use(memory, "", UUIDS) == {1: "30000 MiB of memory in use"}
    assert in_use(memory, "GPU-ccc, 4711\nGPU-ccc, 4712\n", UUIDS) == {
        1: "30000 MiB of memory in use",
        2: "process 4711, 4712",
    }
    assert in_use("no devices were found\n", "\n", UUIDS) == {}


@pytest.mark.parametrize(
    ("membership", "file", "text"),
    [
        ("0::/job\n", "job/memory.events", "low 0\nhigh 0\nmax 4\noom 2\noom_kill 2\n"),
        ("4:cpu:/x\n5:memory:/job\n", "memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ("0::/\n", "memory.events", "oom_kill 2\n"),
    ],
)
def test_kills_of_the_group_are_counted(tmp_path: Path, membership: str, file: str, text: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    (tmp_path / "self").write_text(membership)
    assert oom_kills(tmp_path, tmp_path / "self", tmp_path / "none") == 2


def test_machine_counter_is_the_last_resort(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 7\n")
    assert oom_kills(tmp_path, tmp_path / "none", tmp_path / "vmstat") == 7
    assert oom_kills(tmp_path, tmp_path / "none", tmp_path / "none") == 0


def test_machine_without_gpu_files_has_none(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    starter = Starter({}, warm=False)
    assert LocalDevices(settings, starter, dev=tmp_path).offer().gpus == ()
    (tmp_path / "nvidia0").touch()
    assert LocalDevices(settings, starter, dev=tmp_path).offer().gpus is None


def test_failed_probe_reports_nothing(tmp_path: Path) -> None:
    starter = Starter(os.environ, warm=False)
    probe = (sys.executable, "-c", "print('Traceback')")
    devices = LocalDevices(Settings(data_dir=tmp_path), starter, probe=probe, dev=tmp_path)
    until(lambda: devices.poll() or devices.ended_at is not None, "the end of the probe")
    assert not devices.poll()
    assert devices.document is None
    assert devices.busy() == {}
    assert not devices.poll()
