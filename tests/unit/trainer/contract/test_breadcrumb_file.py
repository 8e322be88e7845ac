"""The breadcrumb: readable at every moment, also after its rank was killed while writing or stopped."""

import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

from trainer.contract.crumb import LAYOUT, CrumbWriter, read_crumb


def test_position_reads_back(tmp_path: Path) -> None:
    writer = CrumbWriter(tmp_path / "crumb")
    writer.phase, writer.step = "backward", 7
    writer.enter("gradients")
    found = read_crumb(tmp_path / "crumb")
    assert found is not None
    assert (found.pid, found.phase, found.step) == (os.getpid(), "backward", 7)
    assert (found.collective, found.inside, found.operation) == (1, True, "gradients")
    writer.leave()
    left = read_crumb(tmp_path / "crumb")
    assert left is not None
    assert not left.inside


def test_nothing_written_is_none(tmp_path: Path) -> None:
    assert read_crumb(tmp_path / "none") is None
    (tmp_path / "short").write_bytes(b"\1" * 10)
    assert read_crumb(tmp_path / "short") is None
    (tmp_path / "fresh").write_bytes(bytes(LAYOUT.size))
    assert read_crumb(tmp_path / "fresh") is None


def test_torn_write_still_tells_a_position(tmp_path: Path) -> None:
    writer = CrumbWriter(tmp_path / "crumb")
    writer.phase = "save"
    writer.flush()
    data = bytearray((tmp_path / "crumb").read_bytes())
    struct.pack_into("<Q", data, 0, struct.unpack_from("<Q", data)[0] + 1)
    (tmp_path / "torn").write_bytes(data)
    found = read_crumb(tmp_path / "torn")
    assert found is not None
    assert found.phase == "save"


def test_long_names_are_cut(tmp_path: Path) -> None:
    writer = CrumbWriter(tmp_path / "crumb")
    writer.phase = "ä" * 100
    writer.enter("x" * 500)
    found = read_crumb(tmp_path / "crumb")
    assert found is not None
    assert found.phase == "ä" * 16
    assert found.operation == "x" * 64


def test_readers_never_see_a_mixture(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from trainer.contract.crumb import CrumbWriter
writer = CrumbWriter(Path(sys.argv[1]))
while True:
    for step in range(1000):
        writer.step, writer.phase, writer.operation = step, f"phase {step}", f"operation {step}"
        writer.flush()
"""
    path = tmp_path / "crumb"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        while read_crumb(path) is None:
            time.sleep(0.01)
        for _ in range(2000):
            found = read_crumb(path)
            assert found is not None
            if found.phase != "start":
                assert (found.phase, found.operation) == (f"phase {found.step}", f"operation {found.step}")
        process.send_signal(signal.SIGSTOP)
        assert read_crumb(path) is not None
    finally:
        process.kill()
        process.wait()
    assert read_crumb(path) is not None
