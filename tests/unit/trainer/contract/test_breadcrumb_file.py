"""The breadcrumb: readable at any time, even after its rank was killed while writing or stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import until
from trainer.contract.crumb import PLACE, CrumbWriter, read_crumb


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
    (tmp_path / "fresh").write_bytes(bytes(2 * PLACE))
    assert read_crumb(tmp_path / "fresh") is None


@pytest.mark.parametrize("torn", range(1, PLACE))
def test_torn_write_tells_the_one_before(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "crumb"
    writer = CrumbWriter(path)
    writer.phase, writer.step = "forward", 6
    writer.flush()
    before = path.read_bytes()
    writer.phase, writer.step = "save", 7
    writer.flush()
    after = path.read_bytes()
    begin = next(place for place in (0, PLACE) if before[place : place + PLACE] != after[place : place + PLACE])
    path.write_bytes(after[: begin + torn] + before[begin + torn :])
    found = read_crumb(path)
    assert found is not None
    assert (found.phase, found.step) in {("forward", 6), ("save", 7)}
    whole = after[begin : begin + torn] + before[begin + torn : begin + PLACE] == after[begin : begin + PLACE]
    assert (found.step == 7) is whole


def test_first_write_torn_is_none(tmp_path: Path) -> None:
    CrumbWriter(tmp_path / "crumb")
    data = bytearray((tmp_path / "crumb").read_bytes())
    data[PLACE + 8] ^= 1
    (tmp_path / "crumb").write_bytes(data)
    assert read_crumb(tmp_path / "crumb") is None


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
        until(lambda: read_crumb(path), "the first breadcrumb")
        for _ in range(2000):
            found = read_crumb(path)
            assert found is not None
            if found.phase != "start":  # the writer may be stopped anywhere, even in the middle of a write
                assert (found.phase, found.operation) == (f"phase {found.step}", f"operation {found.step}")
        for _ in range(200):
            process.send_signal(signal.SIGSTOP)
            found = read_crumb(path)
            assert found is not None
            assert (found.phase, found.operation) == (f"phase {found.step}", f"operation {found.step}")
            process.send_signal(signal.SIGCONT)
    finally:
        process.kill()
        process.wait()
    assert read_crumb(path) is not None
