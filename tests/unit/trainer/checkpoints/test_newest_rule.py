"""The newest checkpoint has the highest step: not the latest, not the last by name, and not a foreign folder."""

import shutil
from pathlib import Path

import pytest

from app.runs.errors import Conflict
from app.runs.results.checkpoints import check_checkpoints, newest_checkpoint
from tests.support.checkpoints import add_checkpoint
from tests.support.small_training import SmallTraining
from trainer.common.checkpoints.errors import CheckpointDamaged
from trainer.common.checkpoints.store import CheckpointStore
from trainer.contract.checkpoints import inspect, list_checkpoints, newest_of_run, newest_valid, resumable
from trainer.contract.manifest import step_of
from trainer.contract.paths import RunPaths
from worker import facts

LATER = 1e9
"""The clock was set back: the older a checkpoint of `run` is, the later it appears to be."""
FOREIGN = (
    "step-10000.tmp",
    "step-best",
    "best",
    "step-",
    "step-12a",
    "step-0x10",
    "step-٣٣٣٣",
    "step-0009\n",
    "step--1",
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (9999, 10_000, 99_999, 100_000):
        add_checkpoint(tmp_path / "checkpoints", step, LATER / step)
    return tmp_path


def newest_everywhere(run: Path) -> set[str | None]:
    """Return the newest checkpoint of a run according to each part of the product."""
    found, _ = newest_valid(run / "checkpoints")
    of_run, _ = newest_of_run(run)
    return {
        None if found is None else f"checkpoints/{found.path.name}",
        None if of_run is None else of_run.path.relative_to(run).as_posix(),
        newest_checkpoint(run).relative,
        facts.newest_checkpoint(RunPaths(run), "train"),
        check_checkpoints(run).items[0].path,
    }


def test_highest_step_is_newest(run: Path) -> None:
    steps = [info.step for info in list_checkpoints(run / "checkpoints")]
    assert steps == [100_000, 99_999, 10_000, 9999]
    for step in steps:
        assert newest_everywhere(run) == {f"checkpoints/step-{step:04d}"}
        shutil.rmtree(run / "checkpoints" / f"step-{step:04d}")


def test_digits_do_not_matter(tmp_path: Path) -> None:
    for name, step in (("step-9", 9), ("step-0010", 10), ("step-000011", 11)):
        add_checkpoint(tmp_path / "checkpoints", step, name=name)
        assert newest_everywhere(tmp_path) == {f"checkpoints/{name}"}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_folder_is_listed_and_never_chosen(run: Path, name: str) -> None:
    root = run / "checkpoints"
    shutil.copytree(root / "step-100000", root / name)
    (root / ".step-100001.7.part").mkdir()
    assert step_of(root / name) is None
    assert newest_everywhere(run) == {"checkpoints/step-100000"}
    *checkpoints, foreign = check_checkpoints(run).items
    assert all(item.valid for item in checkpoints)
    assert (foreign.path, foreign.step, foreign.valid) == (f"checkpoints/{name}", None, False)
    assert foreign.problem == "not a checkpoint: its name is not step- and a number"


def test_foreign_file_is_listed(run: Path) -> None:
    (run / "checkpoints" / "step-100001").write_text("a file")
    assert newest_everywhere(run) == {"checkpoints/step-100000"}
    assert check_checkpoints(run).items[-1].problem == "not a checkpoint: it is not a directory"


def test_two_spellings_are_refused(run: Path) -> None:
    root = run / "checkpoints"
    add_checkpoint(root, 100_000, name="step-0100000")
    text = "step-0100000 and step-100000 are both step 100000: remove all but one of them"
    assert {inspect(root / name).problem for name in ("step-0100000", "step-100000")} == {text}
    assert newest_checkpoint(run).skipped == (f"checkpoints/step-100000: {text}", f"checkpoints/step-0100000: {text}")
    assert newest_checkpoint(run).relative == "checkpoints/step-99999"
    shutil.rmtree(root / "step-100000")
    assert newest_everywhere(run) == {"checkpoints/step-0100000"}


def test_only_two_spellings_are_left(tmp_path: Path) -> None:
    assert not resumable(tmp_path)
    add_checkpoint(tmp_path / "checkpoints", 7)
    assert resumable(tmp_path)
    add_checkpoint(tmp_path / "checkpoints", 7, name="step-7")
    assert not resumable(tmp_path)
    with pytest.raises(Conflict, match="step-0007 and step-7 are both step 7"):
        newest_checkpoint(tmp_path)


def test_load_goes_by_the_number(store: CheckpointStore, training: SmallTraining) -> None:
    for step in (9999, 10_000, 100_000):
        store.save(step, training.state, {})
    shutil.copytree(store.root / "step-100000", store.root / "step-200000.tmp")
    restored = store.load_newest(training.state)
    assert restored is not None
    assert restored.step == 100_000
    shutil.copytree(store.root / "step-100000", store.root / "step-0100000")
    with pytest.raises(CheckpointDamaged, match="step-0100000 and step-100000 are both step 100000"):
        store.load(store.root / "step-100000", training.state)
    restored = store.load_newest(training.state)
    assert restored is not None
    assert restored.step == 10_000


def test_rotation_goes_by_the_number(store: CheckpointStore, training: SmallTraining) -> None:
    keeping = CheckpointStore(store.root, store.identity, keep=2)
    keeping.save(8, training.state, {})
    shutil.copytree(store.root / "step-0008", store.root / "step-best")
    (store.root / "step-0008").rename(store.root / "step-8")
    for step in (9999, 10_000, 10_001):
        keeping.save(step, training.state, {})
    keeping.settle()
    assert {path.name for path in store.root.iterdir()} == {"step-10000", "step-10001", "step-best"}


def test_save_replaces_every_spelling(store: CheckpointStore, training: SmallTraining) -> None:
    store.save(8, training.state, {}).path.rename(store.root / "step-8")
    store.save(8, training.state, {})
    store.settle()
    assert [(path.name, inspect(path).problem) for path in store.root.iterdir()] == [("step-0008", None)]


def test_stage_at_work_comes_first(tmp_path: Path) -> None:
    """Steps of two trajectories of one run do not show which is newer; the last active stage does."""
    add_checkpoint(tmp_path / "continuous" / "checkpoints", 20, LATER)
    add_checkpoint(tmp_path / "resumed" / "checkpoints", 12)
    damaged = add_checkpoint(tmp_path / "resumed" / "checkpoints", 15, LATER)
    (damaged / "rank0.pt").unlink()
    found = newest_checkpoint(tmp_path, "resumed")
    assert found.relative == facts.newest_checkpoint(RunPaths(tmp_path), "resumed") == "resumed/checkpoints/step-0012"
    assert found.skipped == ("resumed/checkpoints/step-0015: rank0.pt is missing",)
    assert newest_checkpoint(tmp_path, "compare").relative == "continuous/checkpoints/step-0020"
    add_checkpoint(tmp_path / "checkpoints", 3)
    assert newest_checkpoint(tmp_path, "compare").relative == "checkpoints/step-0003"
