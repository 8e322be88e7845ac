"""Cancel and time limit: stopping until every process is verified gone, whatever the processes do."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.runs import queue
from tests.support.worker_lab import Lab, open_lab

pytestmark = pytest.mark.torchrun

LONG: dict[str, Any] = {"steps": 2000, "step_seconds": 0.05, "meeting": "files"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with open_lab(tmp_path_factory.mktemp("cancel"), stop_grace_seconds=2.0) as lab:
        lab.worker()
        yield lab


def test_cancel_ends_every_descendant(lab: Lab) -> None:
    run_id = lab.submit(**LONG, acts={"0": "deaf", "1": "deaf"}, at_step=1)
    lab.until(lambda: len(lab.processes(run_id)) >= 8, "ranks with stopped helpers in their own sessions")
    lab.reached(run_id, "running")  # the ranks exist before the worker has read their events
    first = lab.cancel(run_id)
    assert first.state == "stopping"
    assert lab.cancel(run_id).cancel_requested_at == first.cancel_requested_at
    assert lab.processes(run_id)
    run = lab.finished(run_id)
    assert (run.state, run.reason, run.failure) == ("cancelled", "cancelled_by_user", None)
    assert not lab.processes(run_id)
    assert "7 processes were ended, none is left, and the devices are free" in run.diagnosis
    assert lab.history(run_id) == ["queued", "starting", "running", "stopping", "cancelled"]
    assert [row.state for row in lab.attempts(run_id)] == ["cancelled"]
    with pytest.raises(queue.AlreadyFinal):
        lab.cancel(run_id)


def test_cancel_wins_over_good_exit(lab: Lab) -> None:
    run_id = lab.submit(launcher="python", steps=30, step_seconds=0.05, stages=2)
    lab.rank_at_step(run_id, 0, 2)
    lab.cancel(run_id)
    run = lab.finished(run_id)
    assert run.state == "cancelled"
    assert [row.state for row in lab.attempts(run_id)] == ["cancelled", "cancelled"]
    assert run.verdict is None


def test_cancel_right_after_claim(lab: Lab) -> None:
    run_id = lab.submit(**LONG)
    lab.until(lambda: lab.run(run_id).state != "queued", "the claim")
    lab.cancel(run_id)
    assert lab.finished(run_id).state == "cancelled"
    assert not lab.processes(run_id)


def test_time_limit_is_told(lab: Lab) -> None:
    with open_lab(lab.settings.data_dir / "limit", run_limit_seconds=10.0, stop_grace_seconds=1.0) as other:
        other.worker()
        run_id = other.submit(launcher="python", steps=4000, step_seconds=0.05)
        run = other.finished(run_id)  # its work alone would take longer than this waits
        assert (run.state, run.reason) == ("failed", "time_limit")
        assert "limit of 10 seconds (DDP_AUDIT_RUN_LIMIT_SECONDS)" in run.diagnosis
        assert not other.processes()
        waiting = other.submit(launcher="python")
        after = other.finished(waiting)
        assert after.state == "succeeded", after.diagnosis
