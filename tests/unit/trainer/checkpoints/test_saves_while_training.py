"""A save contains the step it is named after: training during the save is detected, with both numbers."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, Optimizer

from tests.support.small_training import SmallTraining
from trainer.common.checkpoints import content as content_module
from trainer.common.checkpoints.errors import CheckpointNotSaved
from trainer.common.checkpoints.files import write_tensors
from trainer.common.checkpoints.state import TrainingState
from trainer.common.checkpoints.store import CheckpointStore
from trainer.contract.checkpoints import list_checkpoints

PATIENCE = 30.0


class SlowWriter:
    """Saves in a thread and pauses in the middle until released."""

    def __init__(self, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.failure = store, ""
        self.began, self.may_write = threading.Event(), threading.Event()
        original = write_tensors

        def slowly(path: Path, content: Any) -> Any:
            self.began.set()
            assert self.may_write.wait(PATIENCE)
            return original(path, content)

        monkeypatch.setattr(content_module, "write_tensors", slowly)

    def save(self, step: int, state: TrainingState, meanwhile: Callable[[], Any]) -> str:
        """Save `step` while `meanwhile` runs, and return the error of the save."""
        thread = threading.Thread(target=self._save, args=(step, state))
        thread.start()
        assert self.began.wait(PATIENCE)
        meanwhile()
        self.may_write.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        return self.failure

    def _save(self, step: int, state: TrainingState) -> None:
        try:
            self.store.save(step, state, {})
        except CheckpointNotSaved as error:
            self.failure = str(error)


@pytest.fixture
def writer(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> SlowWriter:
    return SlowWriter(store, monkeypatch)


def saved_steps(store: CheckpointStore) -> list[int]:
    return [info.step for info in list_checkpoints(store.root)]


def test_training_goes_on_while_written(store: CheckpointStore, training: SmallTraining, writer: SlowWriter) -> None:
    training.train(3)
    failure = writer.save(3, training.state, lambda: training.train(4))
    assert failure.startswith("rank 0: step 3: the optimizer is at update 4, so the state is not that after 3 updates")
    assert saved_steps(store) == []
    assert list(store.root.iterdir()) == []


def test_reading_while_written_is_fine(store: CheckpointStore, training: SmallTraining, writer: SlowWriter) -> None:
    training.train(3)
    assert writer.save(3, training.state, lambda: training.model.eval()(torch.ones(2, 4))) == ""
    assert saved_steps(store) == [3]


def test_weights_changed_without_the_optimizer(
    store: CheckpointStore, training: SmallTraining, writer: SlowWriter
) -> None:
    def in_place() -> None:
        with torch.no_grad():
            training.model.get_parameter("3.bias").add_(1)

    failure = writer.save(3, training.state, in_place)
    assert failure.startswith("rank 0: step 3: model.3.bias was changed while it was written")
    assert saved_steps(store) == []


def test_writer_that_comes_late(store: CheckpointStore, training: SmallTraining) -> None:
    assert store.load_newest(training.state) is None
    training.train(3)
    with pytest.raises(CheckpointNotSaved, match="step 1: the optimizer is at update 3"):
        store.save(1, training.state, {})
    store.save(3, training.state, {})
    training.train(5)
    with pytest.raises(CheckpointNotSaved, match="step 4: the optimizer is at update 5"):
        store.save(4, training.state, {})
    assert saved_steps(store) == [3]


def test_count_goes_on_after_a_load(store: CheckpointStore, training: SmallTraining) -> None:
    training.train(3)
    store.save(3, training.state, {})
    other = SmallTraining(seed=99)
    assert store.load_newest(other.state) is not None
    other.step = 3
    other.train(5)
    with pytest.raises(CheckpointNotSaved, match="step 4: the optimizer is at update 5"):
        store.save(4, other.state, {})
    store.save(5, other.state, {})


def test_left_out_steps_are_fine(store: CheckpointStore, training: SmallTraining) -> None:
    """A gradient scaler skips the optimizer's step of an update with infinite gradients."""
    training.train(3)
    store.save(3, training.state, {})
    training.train(4)
    store.save(5, training.state, {})
    training.train(5)
    store.save(6, training.state, {})
    assert saved_steps(store) == [6, 5, 3]


class Stopping(SGD):
    """Fails in the middle of a step."""

    @torch.no_grad()
    def step(self, _closure: Any = None) -> Any:
        """Change one parameter and fail."""
        self.param_groups[0]["params"][0].add_(1)
        raise RuntimeError("out of memory")


def test_half_a_step_is_not_saved(store: CheckpointStore, training: SmallTraining) -> None:
    optimizer = Stopping(training.model.parameters(), lr=0.1)
    state = TrainingState(model=training.model, optimizer=optimizer)
    store.save(3, state, {})
    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step()
    with pytest.raises(CheckpointNotSaved, match="step 3: the optimizer is at update 4"):
        store.save(3, state, {})


@pytest.mark.parametrize("make", [SGD, Adam])
@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_every_way_to_step_is_counted(
    store: CheckpointStore, training: SmallTraining, writer: SlowWriter, make: Callable[..., Optimizer], how: str
) -> None:
    optimizer = make(training.model.parameters(), lr=0.1, **{how: True})
    state = TrainingState(model=training.model, optimizer=optimizer)

    def update() -> None:
        training.model(torch.ones(5, 4)).sum().backward()
        optimizer.step()

    update()
    assert "step 1: the optimizer is at update 2" in writer.save(1, state, update)


def test_sampler_of_another_update(store: CheckpointStore, training: SmallTraining) -> None:
    state = TrainingState(
        model=training.model, optimizer=training.optimizer, updates_in=lambda sampler: int(sampler["done"])
    )
    with pytest.raises(CheckpointNotSaved, match="step 3: the sampler is at update 4"):
        store.save(3, state, {"done": 4})
    store.save(3, state, {"done": 3})
    assert saved_steps(store) == [3]
