"""Hanging ranks: flagged first, then the run ends and names the odd rank, and only that one."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.worker_lab import Lab, open_lab

pytestmark = pytest.mark.torchrun

LONG: dict[str, Any] = {"steps": 2000, "step_seconds": 0.05, "meeting": "files"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    settings = {"stall_seconds": 2.0, "hang_seconds": 8.0, "max_cpu_runs": 2}
    with open_lab(tmp_path_factory.mktemp("hang"), **settings) as lab:
        lab.worker()
        yield lab


@pytest.fixture(scope="module")
def queued(lab: Lab) -> dict[str, int]:
    """Runs that hang by themselves, all at once."""
    skipping: dict[str, Any] = {"world_size": 3, "steps": 6, "acts": {"1": "skip"}}
    return {
        "skip": lab.submit(**skipping, meeting="files"),
        "loop": lab.submit(**LONG, acts={"0": "loop"}),
        "gloo": lab.submit(**skipping, meeting="gloo"),
    }


def hung(lab: Lab, run_id: int) -> dict[str, Any]:
    run = lab.finished(run_id)
    assert (run.state, run.reason) == ("failed", "hang"), run.diagnosis
    assert run.failure is not None
    assert lab.history(run_id) == ["queued", "starting", "running", "stopping", "failed"]
    assert "none is left, and the devices are free" in run.diagnosis
    assert not lab.processes(run_id)
    lab.assert_events_complete(run_id)
    return run.failure


def test_skipping_rank_is_named(lab: Lab, queued: dict[str, int]) -> None:
    failure = hung(lab, queued["skip"])
    assert failure["rank"] == 1
    diagnosis = lab.run(queued["skip"]).diagnosis
    assert "Rank 1 holds up the run" in diagnosis
    assert all(f"rank {rank}: phase" in diagnosis for rank in range(3))
    paths = lab.paths(queued["skip"]).attempt("stage-1", 1)
    assert "ranks.py" in paths.stacks(0).read_text()


def test_skipping_rank_that_leaves_is_named(lab: Lab, queued: dict[str, int]) -> None:
    """Over gloo the later collectives pair up shifted by one, so the rank finishes its work before the others."""
    run = lab.finished(queued["gloo"])
    assert run.state == "failed"
    assert run.failure is not None
    assert run.failure["rank"] == 1
    assert "collectives, while others entered" in run.diagnosis
    assert not lab.processes(queued["gloo"])


def test_looping_rank_is_named(lab: Lab, queued: dict[str, int]) -> None:
    failure = hung(lab, queued["loop"])
    assert (failure["rank"], failure["phase"], failure["step"]) == (0, "train", 2)
    stacks = lab.paths(queued["loop"]).attempt("stage-1", 1)
    assert "in loop" in stacks.stacks(0).read_text()
    assert "in meet_by_files" in stacks.stacks(1).read_text()


@pytest.mark.parametrize("victim", [0, 1])
def test_stopped_rank_is_flagged_and_named(lab: Lab, victim: int) -> None:
    run_id = lab.submit(**LONG)
    pid = lab.rank_at_step(run_id, victim, 2).pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    lab.until(lambda: any(row.stalled for row in lab.ranks(run_id) if row.rank == victim), "the flag")
    assert lab.run(run_id).state == "running"
    failure = hung(lab, run_id)
    assert failure["rank"] == victim
    assert f"Rank {victim} holds up the run: it is stopped" in lab.run(run_id).diagnosis
    assert "no stack (it cannot respond)" in lab.run(run_id).diagnosis


def test_rank_that_never_begins_is_named(lab: Lab) -> None:
    with open_lab(lab.settings.data_dir / "start", start_seconds=4.0) as other:
        other.worker()
        run_id = other.submit(launcher="python", acts={"0": "silent"})
        run = other.finished(run_id)
        assert (run.state, run.reason) == ("failed", "launch_error")
        assert run.failure is not None
        assert run.failure["rank"] == 0
        assert "sent no event within 4 seconds" in run.diagnosis
        assert not other.processes()
