"""Preemption of a real training: one rank is asked to stop, all save the same step, and a retry continues from it."""

import json
import os
import shutil
import signal
from collections.abc import Iterator

import pytest

from app.runs.service import Service
from tests.support.worker_lab import Lab, open_lab
from trainer.contract.checkpoints import newest_valid

pytestmark = pytest.mark.torchrun

UPDATES = 40


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with open_lab(tmp_path_factory.mktemp("preemption")) as lab:
        lab.worker()
        yield lab


def test_preempted_training_goes_on_in_retry(lab: Lab) -> None:
    run_id = lab.submit("token-parity", updates=UPDATES, batch_size_per_rank=2)
    lab.until(lambda: [row for row in lab.ranks(run_id) if row.stage == "train" and row.step], "an update", 120)
    rank = next(row for row in lab.ranks(run_id) if row.stage == "train" and row.rank == 1)
    assert rank.pid is not None
    os.kill(rank.pid, signal.SIGTERM)
    run = lab.finished(run_id)
    assert (run.state, run.reason, run.verdict) == ("failed", "preempted", None)
    saved, _ = newest_valid(lab.paths(run_id).checkpoints())
    assert saved is not None
    assert 0 < saved.step < UPDATES
    assert saved.path.name in run.diagnosis

    again = Service(engine=lab.engine, settings=lab.settings).retry(run_id, resume=True, actor="test")
    # The continuing run must not depend on the original run.
    shutil.rmtree(lab.paths(run_id).root)
    finished = lab.finished(again, 180)
    assert (finished.state, finished.verdict, finished.retry_of) == ("succeeded", "pass", run_id)
    events = [json.loads(event.line) for event in lab.events(again) if event.stage == "train" and event.rank == 0]
    steps = [event["step"] for event in events if event["type"] == "metrics"]
    assert steps[0] == saved.step + 1
    assert steps[-1] == UPDATES
