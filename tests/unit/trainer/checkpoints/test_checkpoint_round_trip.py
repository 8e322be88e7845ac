"""Round trips of checkpoints, and the effect of every part: each is left out once."""

import copy
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.small_training import SmallTraining
from trainer.common.checkpoints.digest import digest
from trainer.common.checkpoints.errors import CheckpointDamaged, CheckpointRefused, WindowOpen
from trainer.common.checkpoints.files import read_tensors, write_tensors
from trainer.common.checkpoints.rng import capture_rng, restore_rng, rng_difference
from trainer.common.checkpoints.state import TrainingState
from trainer.common.checkpoints.store import CheckpointStore
from trainer.contract.manifest import FileEntry, file_digest, verify
from trainer.contract.stamp import SHARED, rank_file

CPU = torch.device("cpu")


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(map(torch.equal, left, right))


def uninterrupted(training: SmallTraining, until: int) -> list[torch.Tensor]:
    training.train(until)
    return training.bits()


def test_resumed_equals_uninterrupted(
    store: CheckpointStore, training: SmallTraining, fresh_training: Callable[[], SmallTraining]
) -> None:
    training.train(4)
    store.save(4, training.state, {"position": 4, "ids": torch.arange(3)})
    expected = uninterrupted(training, 10)
    other = fresh_training()
    restored = store.load_newest(other.state)
    assert restored is not None
    assert (restored.step, restored.sampler["position"]) == (4, 4)
    other.step = restored.step
    other.train(10)
    assert same(other.bits(), expected)
    assert other.rates == training.rates[4:]


def drop_rng(training: SmallTraining) -> None:
    torch.manual_seed(7)


def drop_optimizer(training: SmallTraining) -> None:
    training.optimizer.state.clear()


def drop_buffers(training: SmallTraining) -> None:
    norm = training.model[1]
    assert isinstance(norm, nn.BatchNorm1d)
    norm.reset_running_stats()


def advance_schedule_twice(training: SmallTraining) -> None:
    training.scheduler.step()


@pytest.mark.parametrize("fault", [drop_rng, drop_optimizer, drop_buffers, advance_schedule_twice])
def test_every_part_matters(
    store: CheckpointStore,
    training: SmallTraining,
    fresh_training: Callable[[], SmallTraining],
    fault: Callable[[SmallTraining], None],
) -> None:
    training.train(4)
    store.save(4, training.state, {})
    expected = uninterrupted(training, 10)
    other = fresh_training()
    store.load_newest(other.state)
    other.step = 4
    fault(other)
    other.train(10)
    assert not same(other.bits(), expected)


def test_cuda_states_present_and_empty(store: CheckpointStore, training: SmallTraining) -> None:
    path = store.save(1, training.state, {}).path
    own = read_tensors(path, rank_file(0), verify(path).files[rank_file(0)])
    assert own["rng"]["cuda"] == []
    assert own["rng"]["torch"].dtype == torch.uint8
    assert own["rng"]["torch"].device == CPU
    missing = {name: value for name, value in own["rng"].items() if name != "cuda"}
    with pytest.raises(KeyError, match="cuda"):
        restore_rng(missing, CPU)


def test_gpu_states_need_gpu(training: SmallTraining) -> None:
    states = {**capture_rng(CPU), "cuda": [torch.zeros(16, dtype=torch.uint8)]}
    with pytest.raises(ValueError, match="1 GPU generator states, this rank is on cpu"):
        restore_rng(states, CPU)


def test_all_generators_go_on() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    random.gauss(0, 1), np.random.randn()  # both keep half a pair of normal draws
    states = copy.deepcopy(capture_rng(CPU))
    draws = (random.gauss(0, 1), random.random(), float(np.random.randn()), np.random.rand(), torch.rand(3).tolist())
    assert rng_difference(states, capture_rng(CPU)) == ["numpy", "python", "torch"]
    restore_rng(states, CPU)
    assert rng_difference(states, capture_rng(CPU)) == []
    again = (random.gauss(0, 1), random.random(), float(np.random.randn()), np.random.rand(), torch.rand(3).tolist())
    assert draws == again


class FakeScaler:
    """The parts of a gradient scaler that a checkpoint uses."""

    def __init__(self, scale: float = 65536.0) -> None:
        self.values = {"scale": scale, "growth_tracker": 0}

    def state_dict(self) -> dict[str, float]:
        return dict(self.values)

    def load_state_dict(self, state_dict: dict[str, float], /) -> None:
        self.values = dict(state_dict)


def with_scaler(training: SmallTraining, scaler: FakeScaler) -> TrainingState:
    return TrainingState(model=training.model, optimizer=training.optimizer, extras={"scaler": scaler})


def test_scaler_comes_back(
    store: CheckpointStore, training: SmallTraining, fresh_training: Callable[[], SmallTraining]
) -> None:
    scaler = FakeScaler(256.0)
    scaler.values["growth_tracker"] = 17
    store.save(3, with_scaler(training, scaler), {})
    other = FakeScaler()
    store.load_newest(with_scaler(fresh_training(), other))
    assert other.values == {"scale": 256.0, "growth_tracker": 17}


def test_unsaved_scaler_is_refused(store: CheckpointStore, training: SmallTraining) -> None:
    store.save(3, TrainingState(model=training.model, optimizer=training.optimizer), {})
    with pytest.raises(CheckpointRefused, match="scaler") as caught:
        store.load_newest(with_scaler(training, FakeScaler()))
    assert caught.value.field == "extras"


@pytest.mark.parametrize("accumulation", [1, 2, 5])
def test_save_inside_window_is_refused(store: CheckpointStore, training: SmallTraining, accumulation: int) -> None:
    for micro_batch in range(accumulation):
        pending = (micro_batch + 1) % accumulation
        if pending == 0:
            store.save(1, training.state, {}, pending_micro_batches=pending)
            continue
        with pytest.raises(WindowOpen, match=f"{pending} micro-batches"):
            store.save(1, training.state, {}, pending_micro_batches=pending)
        assert not store.root.exists()


def test_entry_matches_the_file(tmp_path: Path) -> None:
    entry = write_tensors(tmp_path / "x.pt", {"a": torch.arange(100_000), "b": [1, "two", None]})
    assert entry == FileEntry(bytes=(tmp_path / "x.pt").stat().st_size, sha256=file_digest(tmp_path / "x.pt"))
    assert read_tensors(tmp_path, "x.pt", entry)["b"] == [1, "two", None]


class Harmful:
    """Runs code when it is unpickled unsafely."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("must never be printed",))


def test_code_is_never_unpickled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(Harmful(), tmp_path / "x.pt")
    entry = FileEntry(bytes=(tmp_path / "x.pt").stat().st_size, sha256=file_digest(tmp_path / "x.pt"))
    with pytest.raises(CheckpointDamaged, match="cannot be unpickled safely"):
        read_tensors(tmp_path, "x.pt", entry)
    assert capsys.readouterr().out == ""
    pickle.loads(pickle.dumps(Harmful()))
    assert capsys.readouterr().out == "must never be printed\n"


def test_shared_file_holds_all_parts(store: CheckpointStore, training: SmallTraining) -> None:
    training.train(2)
    path = store.save(2, training.state, {}).path
    shared = read_tensors(path, SHARED, verify(path).files[SHARED])
    assert shared["scheduler"]["last_epoch"] == 2
    assert set(shared["optimizer"]["state"]) == set(range(6))
    header = verify(path).header
    assert [entry.name for entry in header.parameters] == [name for name, _ in training.model.named_parameters()]
    assert header.optimizer == [[name for name, _ in training.model.named_parameters()]]


def test_digest_sees_bits_and_names() -> None:
    base = {"a": torch.tensor([0.0, 1.0]), "b": [1, 2.0, None, "x"]}
    assert digest(base) == digest({"b": [1, 2.0, None, "x"], "a": torch.tensor([0.0, 1.0])})
    others = [
        {**base, "a": torch.tensor([-0.0, 1.0])},
        {**base, "a": torch.tensor([0.0, 1.0], dtype=torch.float64)},
        {**base, "a": torch.tensor([[0.0, 1.0]])},
        {**base, "b": [1, 2, None, "x"]},
        {"c": base["a"], "b": base["b"]},
    ]
    assert len({digest(item) for item in [base, *others]}) == 1 + len(others)
    with pytest.raises(TypeError, match="object"):
        digest(object())


def test_wrapped_model_keeps_names(store: CheckpointStore, training: SmallTraining) -> None:
    class Wrapper(nn.parallel.DistributedDataParallel):
        def __init__(self, module: nn.Module) -> None:
            nn.Module.__init__(self)
            self.module = module

    plain = TrainingState(model=training.model, optimizer=training.optimizer)
    wrapped = TrainingState(model=Wrapper(training.model), optimizer=training.optimizer)
    assert list(wrapped.shared()["model"]) == list(plain.shared()["model"])
