"""Foreign checkpoints are refused with the field named; failed saves do not affect earlier ones."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from tests.support.small_training import SmallTraining
from trainer.common.checkpoints import files
from trainer.common.checkpoints import store as store_module
from trainer.common.checkpoints.errors import CheckpointDamaged, CheckpointNotSaved, CheckpointRefused
from trainer.common.checkpoints.identity import Identity
from trainer.common.checkpoints.state import TrainingState
from trainer.common.checkpoints.store import CheckpointStore
from trainer.contract.checkpoints import list_checkpoints, newest_valid


def other_config(**changes: Any) -> dict[str, Any]:
    return {"config": {"seed": 7, "learning_rate": 0.1, "stop_step": 5, **changes}}


FOREIGN = {
    "kind": {"kind": "cifar"},
    "config.seed": other_config(seed=8),
    "config.learning_rate": other_config(learning_rate=0.2),
    "config.new_field": other_config(new_field=1),
    "world_size": {"world_size": 3},
    "data_lock": {"data_lock": "b" * 64},
}


@pytest.mark.parametrize("field", FOREIGN)
def test_foreign_training_is_refused(
    store: CheckpointStore, training: SmallTraining, identity: Callable[..., Identity], field: str
) -> None:
    store.save(4, training.state, {})
    before = training.bits() if training.step else [value.clone() for value in training.model.state_dict().values()]
    other = CheckpointStore(store.root, identity(**FOREIGN[field]))
    with pytest.raises(CheckpointRefused, match=field) as caught:
        other.load_newest(training.state)
    assert caught.value.field == field
    assert all(map(torch.equal, before, training.model.state_dict().values()))


def test_where_to_stop_is_free(
    store: CheckpointStore, training: SmallTraining, identity: Callable[..., Identity]
) -> None:
    store.save(4, training.state, {})
    other = CheckpointStore(store.root, identity(**other_config(stop_step=9)))
    assert other.load_newest(training.state) is not None


def rebuilt(model: nn.Module, parameters: list[nn.Parameter] | None = None) -> TrainingState:
    return TrainingState(
        model=model, optimizer=SGD(parameters or list(model.parameters()), lr=0.1), scheduler=StubSchedule()
    )


class StubSchedule:
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, _: dict[str, Any], /) -> None:
        raise AssertionError("a refused checkpoint must not be applied")


def test_other_names_shapes_and_order(store: CheckpointStore, training: SmallTraining) -> None:
    store.save(4, training.state, {})
    swapped = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))
    reordered = [*swapped.parameters()][::-1]
    cases = [
        (rebuilt(nn.Sequential(nn.Linear(4, 8))), "parameters", "only in the checkpoint: .*3.weight"),
        (
            rebuilt(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))),
            "parameters",
            "3.bias",
        ),
        (rebuilt(swapped, reordered), "optimizer.group0", "another order: position 0 is 0.weight"),
    ]
    for state, field, text in cases:
        with pytest.raises(CheckpointRefused, match=text) as caught:
            store.load_newest(state)
        assert caught.value.field == field


def test_optimizer_groups_are_compared(store: CheckpointStore, training: SmallTraining) -> None:
    store.save(4, training.state, {})
    first, *rest = training.model.parameters()
    optimizer = SGD([{"params": [first]}, {"params": rest}], lr=0.1)
    state = TrainingState(model=training.model, optimizer=optimizer, scheduler=training.scheduler)
    with pytest.raises(CheckpointRefused, match="1 parameter groups in the checkpoint and 2 here"):
        store.load_newest(state)


def test_missing_schedule_is_refused(store: CheckpointStore, training: SmallTraining) -> None:
    store.save(4, training.state, {})
    with pytest.raises(CheckpointRefused, match="in the checkpoint but not here") as caught:
        store.load_newest(TrainingState(model=training.model, optimizer=training.optimizer))
    assert caught.value.field == "scheduler"


def test_swapped_rank_files_are_noticed(tmp_path: Path, store: CheckpointStore, training: SmallTraining) -> None:
    path = store.save(4, training.state, {}).path
    shutil.copy(path / "shared.pt", path / "rank0.pt")
    with pytest.raises(CheckpointDamaged, match=r"rank0\.pt"):
        store.load(path, training.state)


def test_damaged_newest_is_passed_over(store: CheckpointStore, training: SmallTraining) -> None:
    for step in (2, 4):
        store.save(step, training.state, {})
    (store.root / "step-0004" / "shared.pt").write_bytes(b"torn")
    restored = store.load_newest(training.state)
    assert restored is not None
    assert restored.step == 2
    (store.root / "step-0002" / "manifest.json").unlink()
    with pytest.raises(CheckpointDamaged, match=r"no valid checkpoint is left.*step-0004.*step-0002"):
        store.load_newest(training.state)


def test_first_start_finds_nothing(store: CheckpointStore, training: SmallTraining) -> None:
    assert store.load_newest(training.state) is None


class FullDisk:
    """Takes `room` bytes, then fails as a full disk does."""

    def __init__(self, handle: Any, room: int) -> None:
        self._handle, self._room = handle, room

    def write(self, data: Any) -> int:
        self._room -= memoryview(data).nbytes
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self._handle.write(data))


@pytest.mark.parametrize("room", [0, 1000, 6000])
def test_full_disk_keeps_previous(
    store: CheckpointStore, training: SmallTraining, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    store.save(2, training.state, {})
    original = files.HashingWriter

    def on_full_disk(handle: Any) -> files.HashingWriter:
        return original(FullDisk(handle, room))  # type: ignore[arg-type]

    monkeypatch.setattr(files, "HashingWriter", on_full_disk)
    with pytest.raises(CheckpointNotSaved, match=r"No space left on device: .*\.pt \(\d+ bytes free\)"):
        store.save(4, training.state, {})
    monkeypatch.undo()
    assert [item.name for item in store.root.iterdir()] == ["step-0002"]
    newest, skipped = newest_valid(store.root)
    assert newest is not None
    assert (newest.step, skipped) == (2, [])
    assert store.save(4, training.state, {}).step == 4


def test_manifest_write_fails(store: CheckpointStore, training: SmallTraining, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(2, training.state, {})

    original = Path.write_text

    def refuse(path: Path, data: str) -> int:
        original(path, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(CheckpointNotSaved, match="No space left on device"):
        store.save(4, training.state, {})
    assert [item.name for item in store.root.iterdir()] == ["step-0002"]


def test_unwritable_place_is_told(tmp_path: Path, training: SmallTraining, identity: Callable[..., Identity]) -> None:
    (tmp_path / "file").write_text("in the way")
    store = CheckpointStore(tmp_path / "file" / "checkpoints", identity())
    with pytest.raises(CheckpointNotSaved, match=r"rank 0: Not a directory: .*file"):
        store.save(1, training.state, {})


def test_newest_and_pinned_stay(
    store: CheckpointStore, training: SmallTraining, identity: Callable[..., Identity]
) -> None:
    keeping = CheckpointStore(store.root, identity(), keep=2)
    for step in range(1, 7):
        keeping.save(step, training.state, {}, pinned=step == 3)
    assert [info.step for info in list_checkpoints(store.root)] == [6, 5, 3]
    keeping.settle()
    assert len(list(store.root.iterdir())) == 3
    with pytest.raises(ValueError, match="keep is 0"):
        CheckpointStore(store.root, identity(), keep=0)


def test_removal_cut_short(
    store: CheckpointStore, training: SmallTraining, identity: Callable[..., Identity], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping = CheckpointStore(store.root, identity(), keep=1)
    monkeypatch.setattr(store_module, "_delete", lambda paths: (paths[0] / "shared.pt").unlink())
    for step in (1, 2):
        keeping.save(step, training.state, {})
    keeping.settle()
    assert len(list(store.root.iterdir())) == 2
    assert [(info.step, info.valid) for info in list_checkpoints(store.root)] == [(2, True)]
    monkeypatch.undo()
    keeping.save(3, training.state, {})
    keeping.settle()
    assert [item.name for item in store.root.iterdir()] == ["step-0003"]


def test_damaged_step_is_replaced(store: CheckpointStore, training: SmallTraining) -> None:
    store.save(4, training.state, {})
    (store.root / "step-0004" / "shared.pt").write_bytes(b"torn")
    (store.root / ".step-0004.1.part").mkdir()
    store.save(4, training.state, {})
    store.settle()
    assert [item.name for item in store.root.iterdir()] == ["step-0004"]
    assert newest_valid(store.root)[1] == []
