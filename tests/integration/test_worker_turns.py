"""The worker takes the next step of a run when something happens, not when its next look is due."""

import threading
from pathlib import Path

import pytest

from tests.support.worker_lab import open_lab
from worker import loop
from worker.loop import Worker

LONG_SECONDS = 3600.0


@pytest.mark.torchrun
@pytest.mark.parametrize("is_warm", [True, False], ids=["forked", "new interpreters"])
def test_run_ends_without_another_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_warm: bool) -> None:
    monkeypatch.setattr(loop, "BUSY_TURN_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(loop, "IDLE_TURN_SECONDS", LONG_SECONDS)
    with open_lab(tmp_path, warm_start=is_warm) as lab:
        monkeypatch.setenv("PYTHONPATH", lab.environment()["PYTHONPATH"])
        run_id = lab.submit(stages=2, meeting="files")
        worker = Worker(lab.settings)
        thread = threading.Thread(target=worker.run_single, args=(run_id,), daemon=True)
        thread.start()
        try:
            thread.join(120)
            assert not thread.is_alive(), lab.run(run_id).state
        finally:
            if thread.is_alive():
                worker.stop()
                thread.join(30)
        run = lab.run(run_id)
        assert (run.state, run.verdict) == ("succeeded", "pass"), run.diagnosis
        assert [row.state for row in lab.attempts(run_id)] == ["succeeded", "succeeded"]
        lab.assert_events_complete(run_id)
