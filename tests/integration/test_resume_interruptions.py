"""Kills in the worst places and a preemption, in sequence on one training, which must not be affected."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.stages import LocalRun
from trainer.contract.checkpoints import list_checkpoints
from trainer.contract.crumb import Crumb, read_crumb
from trainer.contract.exits import EXIT_PREEMPTED
from trainer.kinds.resume.differences import compare
from trainer.kinds.resume.evidence import Evidence

pytestmark = pytest.mark.torchrun
UPDATES, PATIENCE = 12, 120.0


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One interruption that took effect."""

    attempt: int
    step: int
    """Updates done."""
    phase: str
    operation: str
    """The collective the rank was inside, empty outside of one."""


def stopped_at(run: LocalRun, attempt: int, condition: Callable[[Crumb], bool]) -> tuple[int, Crumb]:
    """Stop rank 0 where `condition` holds: the position is read again while it is stopped. Returns its pid."""
    path = run.attempt("killed", attempt).breadcrumb(0)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        crumb = read_crumb(path)
        if crumb is None or not condition(crumb):
            time.sleep(0.0005)
            continue
        process = psutil.Process(crumb.pid)
        process.suspend()
        while process.status() != psutil.STATUS_STOPPED:
            time.sleep(0.0005)
        crumb = read_crumb(path)
        if crumb is not None and condition(crumb):
            return crumb.pid, crumb
        process.resume()  # it continued between the check and the signal
    raise AssertionError(
        f"rank 0 did not reach the expected position within {PATIENCE} s\n{run.output('killed', attempt)}"
    )


def kill_ranks(run: LocalRun, attempt: int, condition: Callable[[Crumb], bool]) -> Hit:
    """Start an attempt and kill both ranks with SIGKILL where rank 0 meets `condition`."""
    launcher = run.start("killed", attempt=attempt)
    pid, crumb = stopped_at(run, attempt, condition)
    other = read_crumb(run.attempt("killed", attempt).breadcrumb(1))
    assert other is not None
    os.kill(pid, signal.SIGKILL)
    os.kill(other.pid, signal.SIGKILL)
    assert launcher.wait(PATIENCE) != 0
    operation = crumb.operation if crumb.inside else ""
    return Hit(attempt=attempt, step=crumb.step, phase=crumb.phase, operation=operation)


def in_backward(crumb: Crumb) -> bool:
    return crumb.phase == "backward" and not crumb.inside and crumb.step >= 2


def in_save(crumb: Crumb) -> bool:
    return crumb.phase == "save" and not crumb.inside and crumb.step == 6


def in_reduction(crumb: Crumb) -> bool:
    return crumb.inside and crumb.operation.startswith("gradients") and crumb.step >= 7


def preempt(run: LocalRun, attempt: int) -> int:
    """Start an attempt, send SIGTERM only to rank 1 after update 10, and return the launcher's exit code."""
    launcher = run.start("killed", attempt=attempt)
    path = run.attempt("killed", attempt).breadcrumb(1)
    deadline = time.monotonic() + PATIENCE
    while (crumb := read_crumb(path)) is None or crumb.step < 10:
        assert time.monotonic() < deadline, run.output("killed", attempt)
        time.sleep(0.001)
    os.kill(crumb.pid, signal.SIGTERM)
    return launcher.wait(PATIENCE)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalRun, list[Hit], int]:
    """Train uninterrupted, then the same in five attempts; return the run, the kills, the preempted exit code."""
    root = tmp_path_factory.mktemp("kills") / "1"
    run = LocalRun.create(root, "resume", "kill", updates=UPDATES, stop_step=6, save_every=3)
    run.stage("continuous")
    hits = [
        kill_ranks(run, 1, in_backward),
        kill_ranks(run, 2, in_save),
        kill_ranks(run, 3, in_reduction),
    ]
    code = preempt(run, 4)
    run.stage("killed", attempt=5)
    return run, hits, code


def began_at(run: LocalRun, attempt: int) -> int:
    """Return the updates done when an attempt began to train."""
    phases = run.events("killed", attempt=attempt, kind="phase")
    return next(int(event["step"]) for event in phases if event["phase"] == "train")


def test_kills_hit_the_places(story: tuple[LocalRun, list[Hit], int]) -> None:
    _, (backward, save, reduction), _ = story
    assert (backward.phase, backward.operation) == ("backward", "")
    assert (save.phase, save.step) == ("save", 6)
    assert reduction.operation.startswith("gradients")


def test_next_attempt_takes_newest_valid(story: tuple[LocalRun, list[Hit], int]) -> None:
    run, (backward, _, reduction), _ = story
    # Killed while saving update 6, the training returns to the previous complete checkpoint.
    assert began_at(run, 2) == backward.step // 3 * 3
    assert began_at(run, 3) == 3
    assert began_at(run, 4) == reduction.step // 3 * 3


def test_preemption_saves_on_all_ranks(story: tuple[LocalRun, list[Hit], int]) -> None:
    run, _, code = story
    assert code == EXIT_PREEMPTED
    assert [rank["exit_code"] for rank in run.ranks_exit("killed", 4)["ranks"]] == [EXIT_PREEMPTED] * 2
    (saved,) = [event["step"] for event in run.events("killed", attempt=4, kind="checkpoint")][-1:]
    assert saved in (10, 11, 12)
    assert began_at(run, 5) == saved


def test_training_notices_nothing(story: tuple[LocalRun, list[Hit], int]) -> None:
    run, _, _ = story
    left, right = (Evidence.read(name, run.paths.checkpoints(name), UPDATES) for name in ("continuous", "killed"))
    assert compare(left, right).same
    for rank in right.ranks:
        assert [start["attempt"] for start in rank["sampler"]["starts"]][-1] == 5


def test_no_half_checkpoint_is_left(story: tuple[LocalRun, list[Hit], int]) -> None:
    run, _, _ = story
    root: Path = run.paths.checkpoints("killed")
    assert all(info.valid for info in list_checkpoints(root))
    assert [item.name for item in root.iterdir() if item.name.startswith(".")] == []
