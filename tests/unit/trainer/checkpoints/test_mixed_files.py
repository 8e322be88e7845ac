"""Files of different steps, trainings, ranks or types in one checkpoint, each with a matching manifest."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from tests.support.checkpoints import renew
from tests.support.small_training import SmallTraining
from trainer.common.checkpoints.errors import CheckpointDamaged, CheckpointError, CheckpointRefused
from trainer.common.checkpoints.identity import Identity
from trainer.common.checkpoints.state import TrainingState
from trainer.common.checkpoints.store import CheckpointStore
from trainer.contract.checkpoints import inspect, newest_valid
from trainer.contract.manifest import verify
from trainer.contract.stamp import SHARED, Stamp, rank_file, read_stamp

RANK = rank_file(0)
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def saved(store: CheckpointStore, training: SmallTraining) -> Path:
    """Return the root of checkpoints at steps 2 and 4 of one training."""
    for step in (2, 4):
        training.train(step)
        store.save(step, training.state, {"position": step})
    return store.root


def rewrite(file: Path, change: Change) -> None:
    """Change the content of a file with torch, and make the manifest match."""
    content = torch.load(file, weights_only=True)
    change(content)
    torch.save(content, file)
    renew(file.parent)


def refusal(store: CheckpointStore, step: int, state: TrainingState) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        store.load(store.root / f"step-{step:04d}", state)
    return caught.value


@pytest.mark.parametrize("name", [SHARED, RANK])
def test_file_of_another_step(saved: Path, store: CheckpointStore, training: SmallTraining, name: str) -> None:
    renew(saved / "step-0004")
    assert inspect(saved / "step-0004").problem is None
    shutil.copy(saved / "step-0002" / name, saved / "step-0004" / name)
    renew(saved / "step-0004")
    text = f"{name} is of step 2, manifest.json is of step 4"
    assert inspect(saved / "step-0004").problem == text
    error = refusal(store, 4, training.state)
    assert (type(error), str(error)) == (CheckpointDamaged, f"rank 0: step-0004: {text}")
    restored = store.load_newest(training.state)
    assert restored is not None
    assert restored.step == 2


def test_whole_checkpoint_under_another_step(saved: Path) -> None:
    (saved / "step-0004").rename(saved / "step-0009")
    (saved / "step-0002").rename(saved / "step-0004")
    renew_as(saved / "step-0009", 9)
    assert inspect(saved / "step-0009").problem == f"{RANK} is of step 4, manifest.json is of step 9"


def renew_as(directory: Path, step: int) -> None:
    """Change the step in the manifest: it is moved to where it can be read first."""
    aside = directory.rename(directory.with_name("aside"))
    renew(aside, step=step)
    aside.rename(directory)


def test_file_of_another_training(
    saved: Path, store: CheckpointStore, training: SmallTraining, identity: Callable[..., Identity], tmp_path: Path
) -> None:
    config = {"seed": 8, "learning_rate": 0.1, "stop_step": 5}
    other = CheckpointStore(tmp_path / "other", identity(config=config)).save(4, training.state, {"position": 4})
    free = CheckpointStore(tmp_path / "free", identity(config={**config, "seed": 7, "stop_step": 9}))
    same = free.save(4, training.state, {"position": 4})
    shutil.copy(same.path / SHARED, saved / "step-0004" / SHARED)
    renew(saved / "step-0004")
    assert inspect(saved / "step-0004").problem is None
    shutil.copy(other.path / SHARED, saved / "step-0004" / SHARED)
    renew(saved / "step-0004")
    problem = inspect(saved / "step-0004").problem
    assert problem is not None
    assert problem.startswith(f"{SHARED} is of another training than manifest.json")
    assert str(refusal(store, 4, training.state)).endswith(problem)


def test_file_under_another_name(saved: Path) -> None:
    shutil.copy(saved / "step-0004" / RANK, saved / "step-0004" / SHARED)
    renew(saved / "step-0004")
    assert inspect(saved / "step-0004").problem == f"{SHARED} has the content of {RANK}"


def test_rank_left_out_of_the_listing(saved: Path) -> None:
    renew(saved / "step-0004", world_size=2)
    assert inspect(saved / "step-0004").problem == "manifest.json does not list rank1.pt"


def test_file_without_a_step(saved: Path, store: CheckpointStore, training: SmallTraining) -> None:
    rewrite(saved / "step-0004" / SHARED, lambda content: content.pop("stamp"))
    text = f"{SHARED}: it carries no step, so no save of this format wrote it"
    assert inspect(saved / "step-0004").problem == text
    assert str(refusal(store, 4, training.state)) == f"rank 0: step-0004: {text}"


def narrowed(*path: Any, dtype: torch.dtype = torch.bfloat16) -> Change:
    def change(content: dict[str, Any]) -> None:
        inner: Any = content
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = inner[path[-1]].to(dtype)

    return change


TYPES = {
    "optimizer.0.weight.momentum_buffer": (SHARED, ("optimizer", "state", 0, "momentum_buffer")),
    "optimizer.3.bias.momentum_buffer": (SHARED, ("optimizer", "state", 5, "momentum_buffer")),
    "model.3.weight": (SHARED, ("model", "3.weight")),
    "buffers.1.running_mean": (RANK, ("buffers", "1.running_mean")),
}


@pytest.mark.parametrize("tensor", TYPES)
def test_state_of_another_type(saved: Path, store: CheckpointStore, training: SmallTraining, tensor: str) -> None:
    name, path = TYPES[tensor]
    rewrite(saved / "step-0004" / name, lambda _: None)
    assert inspect(saved / "step-0004").problem is None
    assert store.load(saved / "step-0004", training.state).step == 4
    before = training.bits()
    rewrite(saved / "step-0004" / name, narrowed(*path))
    text = f"{name}: {tensor}: float32 when it was saved, bfloat16 in the file"
    assert inspect(saved / "step-0004").problem == text
    error = refusal(store, 4, training.state)
    assert (type(error), error.field, str(error)) == (CheckpointRefused, tensor, f"rank 0: step-0004: {text}")
    assert all(map(torch.equal, before, training.bits()))


def test_state_of_another_shape(saved: Path, store: CheckpointStore, training: SmallTraining) -> None:
    def flat(content: dict[str, Any]) -> None:
        state = content["optimizer"]["state"][0]
        state["momentum_buffer"] = state["momentum_buffer"].flatten()

    rewrite(saved / "step-0004" / SHARED, flat)
    text = "optimizer.0.weight.momentum_buffer: shape [8, 4] when it was saved, shape [32] in the file"
    assert text in str(refusal(store, 4, training.state))


def test_state_that_was_taken_out(saved: Path, store: CheckpointStore, training: SmallTraining) -> None:
    rewrite(saved / "step-0004" / SHARED, lambda content: content["optimizer"]["state"][0].clear())
    text = "optimizer.0.weight.momentum_buffer exists only when it was saved"
    assert text in str(refusal(store, 4, training.state))


def test_manifest_records_all_state(saved: Path) -> None:
    """Types and shapes of everything that `torch.load` finds are in the manifest, and in the file itself."""
    for name in (SHARED, RANK):
        content = torch.load(saved / "step-0004" / name, weights_only=True)
        stamp = Stamp.model_validate_json(content.pop("stamp").numpy().tobytes())
        listed = verify(saved / "step-0004").files[name].tensors
        assert listed == stamp.tensors
        assert sorted(listed.values()) == sorted(
            f"{leaf.dtype}{list(leaf.shape)}".removeprefix("torch.") for leaf in leaves(content)
        )
    shared = verify(saved / "step-0004").files[SHARED].tensors
    assert shared["optimizer.0.weight.momentum_buffer"] == "float32[8, 4]"


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [leaf for item in items for leaf in leaves(item)]


def test_file_saved_with_another_type(saved: Path, store: CheckpointStore, training: SmallTraining) -> None:
    """A file that another save wrote with a narrower type, including its stamp, does not match the manifest."""
    tensor = "optimizer.0.weight.momentum_buffer"

    def resaved(content: dict[str, Any]) -> None:
        narrowed("optimizer", "state", 0, "momentum_buffer")(content)
        stamp = Stamp.model_validate_json(content["stamp"].numpy().tobytes())
        told = stamp.model_copy(update={"tensors": {**stamp.tensors, tensor: "bfloat16[8, 4]"}})
        content["stamp"] = torch.frombuffer(bytearray(told.model_dump_json().encode()), dtype=torch.uint8)

    rewrite(saved / "step-0004" / SHARED, resaved)
    text = f"{SHARED}: {tensor}: float32 in manifest.json, bfloat16 in the file"
    assert inspect(saved / "step-0004").problem == text
    assert str(refusal(store, 4, training.state)) == f"rank 0: step-0004: {text}"


class Keeping(SGD):
    """Keeps its state in the saved type, as an optimizer with wide moments does."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for index, parameter in enumerate(self.param_groups[0]["params"]):
            self.state[parameter]["momentum_buffer"] = state_dict["state"][index]["momentum_buffer"]


def narrow_training(kind: type[SGD]) -> tuple[Optimizer, TrainingState]:
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    optimizer = kind(model.parameters(), lr=0.1, momentum=0.9)
    return optimizer, TrainingState(model=model, optimizer=optimizer)


@pytest.mark.parametrize("kind", [SGD, Keeping])
def test_moments_wider_than_weights(store: CheckpointStore, kind: type[SGD]) -> None:
    """torch's loader gives every moment the type of its parameter: 1.0009765625 would be restored as 1.0."""
    optimizer, state = narrow_training(kind)
    (parameter,) = state.module.parameters()
    optimizer.state[parameter]["momentum_buffer"] = torch.tensor([[1.0009765625]])
    store.save(1, state, {})
    again, live = narrow_training(kind)
    (parameter,) = live.module.parameters()
    if kind is Keeping:
        store.load_newest(live)
        assert again.state[parameter]["momentum_buffer"].tolist() == [[1.0009765625]]
        return
    with pytest.raises(CheckpointRefused) as caught:
        store.load_newest(live)
    text = "step-0001: optimizer.weight.momentum_buffer: float32 in the checkpoint, bfloat16 after loading"
    assert str(caught.value) == f"rank 0: {text}"


def test_live_state_of_another_type(saved: Path, store: CheckpointStore, training: SmallTraining) -> None:
    parameter = training.model.get_parameter("0.weight")
    training.optimizer.state[parameter]["momentum_buffer"] = torch.zeros(8, 4, dtype=torch.float64)
    text = "optimizer.0.weight.momentum_buffer: float32 in the checkpoint, float64 here"
    assert text in str(refusal(store, 4, training.state))


def test_counts_of_another_step(saved: Path, store: CheckpointStore, training: SmallTraining) -> None:
    later = torch.load(saved / "step-0004" / SHARED, weights_only=True)
    rewrite(saved / "step-0002" / SHARED, lambda content: content.update(scheduler=later["scheduler"]))
    error = refusal(store, 2, training.state)
    text = f"step-0002: {SHARED}: scheduler.last_epoch is 4, it was 2 when step 2 was saved"
    assert (error.field, str(error)) == ("scheduler.last_epoch", f"rank 0: {text}")


def test_moments_of_another_step(store: CheckpointStore) -> None:
    model = nn.Linear(2, 2)
    optimizer = AdamW(model.parameters())
    state = TrainingState(model=model, optimizer=optimizer)
    for step in (1, 2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        store.save(step, state, {})
    later = torch.load(store.root / "step-0002" / SHARED, weights_only=True)
    rewrite(store.root / "step-0001" / SHARED, lambda content: content.update(optimizer=later["optimizer"]))
    text = f"step-0001: {SHARED}: optimizer.step is 2, it was 1 when step 1 was saved"
    assert str(refusal(store, 1, state)) == f"rank 0: {text}"
    assert store.load(store.root / "step-0002", state).step == 2


def test_sampler_of_another_step(saved: Path, store: CheckpointStore, training: SmallTraining) -> None:
    state = TrainingState(
        model=training.model,
        optimizer=training.optimizer,
        scheduler=training.scheduler,
        updates_in=lambda sampler: int(sampler["position"]),
    )
    assert store.load(saved / "step-0004", state).sampler["position"] == 4
    rewrite(saved / "step-0004" / RANK, lambda content: content["sampler"].update(position=7))
    error = refusal(store, 4, state)
    text = "rank 0: step-0004: the sampler of rank 0 is at update 7, the checkpoint is of step 4"
    assert (error.field, str(error)) == ("sampler", text)


def test_older_format_is_refused(saved: Path) -> None:
    file = saved / "step-0004" / "manifest.json"
    file.write_text(file.read_text().replace('"schema_version":2', '"schema_version":1').replace(": 2,", ": 1,", 1))
    problem = inspect(saved / "step-0004").problem
    assert problem is not None
    assert problem.startswith("manifest.json has format 1, only format 2 can be continued from; files of format 1")
    newest, _ = newest_valid(saved)
    assert newest is not None
    assert newest.step == 2


def test_files_are_plain_and_repeatable(saved: Path, store: CheckpointStore, tmp_path: Path) -> None:
    again = CheckpointStore(tmp_path / "again", store.identity)
    other = SmallTraining()
    other.train(4)
    path = again.save(4, other.state, {"position": 4}).path
    assert verify(path).files == verify(saved / "step-0004").files
    content = torch.load(path / SHARED, weights_only=True)
    assert Stamp.model_validate_json(content["stamp"].numpy().tobytes()) == read_stamp(path / SHARED)
