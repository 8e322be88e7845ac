"""When a training loop saves, when it stops, and where it continues, in one process."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.small_training import SmallTraining, make_identity
from trainer.common.checkpoints.errors import CheckpointDamaged
from trainer.common.checkpoints.store import CheckpointStore
from trainer.common.continuation import Continuation
from trainer.common.distributed import Group
from trainer.common.telemetry import Telemetry
from trainer.contract.checkpoints import list_checkpoints
from trainer.contract.paths import AttemptPaths

LAST = 7
Make = Callable[..., Continuation]


@pytest.fixture
def training() -> SmallTraining:
    return SmallTraining()


@pytest.fixture(autouse=True)
def _default_term() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def make(tmp_path: Path, training: SmallTraining) -> Make:
    """Return a maker of continuations over the same folder."""
    telemetry = Telemetry(AttemptPaths(tmp_path / "attempt_1"), 0)
    group = Group(rank=0, world_size=1, device=torch.device("cpu"), backend="none", telemetry=telemetry)

    def build(save_every: int = 0, **given: Any) -> Continuation:
        context: Any = SimpleNamespace(params=SimpleNamespace(save_every=save_every), telemetry=telemetry)
        store = CheckpointStore(tmp_path / "checkpoints", make_identity())
        return Continuation(context=context, group=group, store=store, state=training.state, last=LAST, **given)

    return build


def loop(run: Continuation, training: SmallTraining, *, due: int = -1, term_after: int = -1) -> bool:
    """Train to the end; True if it was stopped early."""
    while training.step < LAST:
        training.train(training.step + 1)
        if training.step == term_after:
            os.kill(os.getpid(), signal.SIGTERM)
            deadline = time.monotonic() + 10
            while not run.preemption_requested and time.monotonic() < deadline:
                time.sleep(0.001)  # another thread sets the flag
        if run.after_update(training.step, lambda: {"position": training.step}, due=training.step == due):
            return True
    return False


def steps(tmp_path: Path) -> list[int]:
    return sorted(info.step for info in list_checkpoints(tmp_path / "checkpoints"))


@pytest.mark.parametrize("case", [(0, -1, [7]), (3, -1, [3, 6, 7]), (0, 4, [4, 7])])
def test_saves_when_due(make: Make, training: SmallTraining, tmp_path: Path, case: tuple[int, int, list[int]]) -> None:
    save_every, due, expected = case
    with make(save_every) as run:
        assert run.restore() is None
        assert not loop(run, training, due=due)
    assert steps(tmp_path) == expected


def test_term_saves_and_leaves(make: Make, training: SmallTraining, tmp_path: Path) -> None:
    with make() as run:
        assert loop(run, training, term_after=4)
    assert steps(tmp_path) == [4]
    with make() as run:
        restored = run.restore()
        assert restored is not None
        assert (restored.step, restored.sampler["position"]) == (4, 4)
        training.step = restored.step
        assert not loop(run, training)


@pytest.mark.parametrize("term_after", [-1, 4])
def test_second_term_while_leaving(make: Make, training: SmallTraining, term_after: int) -> None:
    with make() as run:
        loop(run, training, term_after=term_after)
    # The launcher's own SIGTERM must not end a rank that has saved; a rank that was not asked to stop ends by it.
    expected = signal.SIG_DFL if term_after == -1 else signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) == expected


def test_own_checkpoint_before_origin(make: Make, training: SmallTraining, tmp_path: Path) -> None:
    with make(2) as run:
        loop(run, training)
    elsewhere = tmp_path / "elsewhere" / "step-0002"
    shutil.copytree(tmp_path / "checkpoints" / "step-0002", elsewhere)
    with make() as run:
        own = run.restore(elsewhere)
    shutil.rmtree(tmp_path / "checkpoints")
    with make() as run:
        origin = run.restore(elsewhere)
    assert (own and own.step, origin and origin.step) == (7, 2)


def test_damaged_own_checkpoints_stop(make: Make, training: SmallTraining, tmp_path: Path) -> None:
    with make() as run:
        loop(run, training)
    elsewhere = tmp_path / "elsewhere" / "step-0007"
    shutil.copytree(tmp_path / "checkpoints" / "step-0007", elsewhere)
    (tmp_path / "checkpoints" / "step-0007" / "rank0.pt").unlink()
    # Silently returning to the origin would lose work that is believed to be saved.
    with make() as run, pytest.raises(CheckpointDamaged, match=r"step-0007: rank0\.pt is missing"):
        run.restore(elsewhere)
