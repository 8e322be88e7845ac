"""The worker with a different executor: attempts in another process tree, late answers, a broken connection."""

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.host import processes
from tests.support.elsewhere import NAME, ElsewhereExecutor, node, unreachable
from tests.support.worker_lab import Lab, open_lab
from trainer.contract.crumb import read_crumb
from worker.loop import Worker
from worker.marker import MARKER

LONG: dict[str, Any] = {"steps": 400, "step_seconds": 0.05, "meeting": "files"}


def name_spaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    argv = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--uts", "hostname", NAME]
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.torchrun,
    pytest.mark.skipif(not name_spaces(), reason="this machine gives no process name spaces"),
]


class Place:
    """A lab whose runs are executed on the node."""

    def __init__(self, lab: Lab, path: Path) -> None:
        self.lab, self.path = lab, path

    @contextmanager
    def working(self) -> Iterator[ElsewhereExecutor]:
        """Run a worker."""
        executor = ElsewhereExecutor(self.path)
        worker = Worker(self.lab.settings, executor=executor)
        thread = threading.Thread(target=worker.run_forever)
        thread.start()
        try:
            yield executor
        finally:
            worker.stop()
            thread.join(30)
        assert not thread.is_alive()

    def node_processes(self, run_id: int) -> list[int]:
        """Return the processes of a run by this machine's ids, which the worker under test never uses."""
        return [process.pid for process in self.lab.processes(run_id)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with open_lab(tmp_path / "data", hang_seconds=4.0, stall_seconds=2.0) as lab:
        path = tmp_path / "node"
        with node(path, tmp_path / "node-data", {**os.environ, **lab.environment()}):
            yield Place(lab, path)


def test_run_elsewhere_passes(place: Place) -> None:
    with place.working():
        run_id = place.lab.submit(steps=30, step_seconds=0.05, meeting="files", stages=2)
        run = place.lab.finished(run_id)
    assert (run.state, run.verdict) == ("succeeded", "pass"), run.diagnosis
    assert {row.node for row in place.lab.ranks(run_id)} == {NAME}
    assert [row.reference for row in place.lab.attempts(run_id)] == [
        {"node": NAME, "marker": f"{place.lab.database_id}:{run_id}:stage-{number}:1"} for number in (1, 2)
    ]
    place.lab.assert_events_complete(run_id)


def test_ids_of_the_node_mean_nothing_here(place: Place) -> None:
    with place.working():
        run_id = place.lab.submit(**LONG)
        row = place.lab.rank_at_step(run_id, 1, 3)
        assert row.pid is not None
        here = processes.environment_of(row.pid).get(MARKER, "")
        assert not here.startswith(place.lab.database_id)
        place.lab.cancel(run_id)
        place.lab.finished(run_id)


def test_failed_rank_is_named_with_its_node(place: Place) -> None:
    with place.working():
        run_id = place.lab.submit(**LONG, acts={"1": "exit:3"})
        run = place.lab.finished(run_id)
    assert (run.state, run.reason) == ("failed", "rank_exit")
    assert run.failure is not None
    assert (run.failure["rank"], run.failure["node"], run.failure["exit_code"]) == (1, NAME, 3)


def test_cancel_ends_everything_there(place: Place) -> None:
    with place.working():
        run_id = place.lab.submit(**LONG)
        place.lab.rank_at_step(run_id, 0, 3)
        assert len(place.node_processes(run_id)) >= 4
        place.lab.cancel(run_id)
        assert place.lab.finished(run_id).state == "cancelled"
    assert place.node_processes(run_id) == []


def test_stopped_rank_is_seen_through_the_node(place: Place) -> None:
    with place.working():
        run_id = place.lab.submit(**LONG, acts={"1": "signal:19"})
        run = place.lab.finished(run_id)
    assert (run.state, run.reason) == ("failed", "hang"), run.diagnosis
    assert run.failure is not None
    assert run.failure["rank"] == 1
    assert "it is stopped" in run.diagnosis


def test_kills_on_purpose_reach_the_node(place: Place) -> None:
    with place.working():
        # Ten seconds of training: the node's files and the kill arrive late on a busy machine.
        run_id = place.lab.submit(kills=1, steps=200, step_seconds=0.05, save_every=5, meeting="files")
        run = place.lab.finished(run_id, 200)
    assert (run.state, run.verdict) == ("succeeded", "pass"), run.diagnosis
    assert [(row.stage, row.state) for row in place.lab.attempts(run_id)] == [
        ("calm", "succeeded"),
        ("killed", "killed"),
        ("killed", "succeeded"),
    ]


def test_broken_line_loses_nothing(place: Place) -> None:
    lab = place.lab
    with place.working():
        run_id = lab.submit(steps=120, step_seconds=0.05, meeting="files")
        lab.rank_at_step(run_id, 0, 3)
        aside = unreachable(place.path)
        lab.until(lambda: NAME in lab.run(run_id).waiting_for, "that the node is out of reach")
        lab.rank_at_step(run_id, 0, 20)  # its files still arrive
        assert lab.run(run_id).state == "running"
        aside.rename(place.path)
        run = lab.finished(run_id)
    assert (run.state, run.verdict, run.waiting_for) == ("succeeded", "pass", ""), run.diagnosis
    lab.assert_events_complete(run_id)


def test_end_behind_a_broken_line_waits_for_it(place: Place) -> None:
    lab = place.lab
    with place.working():
        run_id = lab.submit(**LONG)
        lab.rank_at_step(run_id, 0, 3)
        aside = unreachable(place.path)
        lab.until(lambda: NAME in lab.run(run_id).waiting_for, "that the node is out of reach")
        lab.cancel(run_id)
        step = read_crumb(lab.paths(run_id).attempt("stage-1", 1).breadcrumb(0))
        assert step is not None
        lab.rank_at_step(run_id, 0, step.step + 10)  # it continues, and so does the run
        assert lab.run(run_id).state == "stopping"
        aside.rename(place.path)
        assert lab.finished(run_id).state == "cancelled"
    assert place.node_processes(run_id) == []


def test_next_worker_finds_the_attempt_there(place: Place) -> None:
    lab = place.lab
    with place.working():
        run_id = lab.submit(steps=100, step_seconds=0.05, meeting="files")
        lab.rank_at_step(run_id, 0, 3)
    before = until_same(lambda: place.node_processes(run_id))
    with place.working():
        run = lab.finished(run_id)
    assert before
    assert (run.state, run.verdict) == ("succeeded", "pass"), run.diagnosis
    assert [(row.stage, row.attempt) for row in lab.attempts(run_id)] == [("stage-1", 1)]
    exit_report = json.loads(lab.paths(run_id).attempt("stage-1", 1).exit.read_text())
    assert exit_report["stop"]["asked"] is False
    lab.assert_events_complete(run_id)


def until_same(look: Callable[[], list[int]]) -> list[int]:
    """Return the value seen twice in a row: short-lived processes appear and disappear."""
    before, deadline = look(), time.monotonic() + 10
    while (now := look()) != before and time.monotonic() < deadline:
        before = now
    return before
