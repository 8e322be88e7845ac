"""Which directories are checkpoints, read without torch."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.small_training import SmallTraining
from trainer.common.checkpoints.store import CheckpointStore
from trainer.contract import checkpoints, manifest
from trainer.contract.checkpoints import checkpoint_roots, inspect, list_checkpoints, newest_valid
from trainer.contract.manifest import ManifestInvalid, read_manifest, verify
from trainer.contract.stamp import UNREADABLE

FILES = ["shared.pt", "rank0.pt", "manifest.json"]


@pytest.fixture
def saved(store: CheckpointStore, training: SmallTraining) -> Path:
    """Return the root of checkpoints at steps 2 and 4."""
    for step in (2, 4):
        training.train(step)
        store.save(step, training.state, {"position": step})
    return store.root


def test_reader_needs_no_torch() -> None:
    code = "import sys, trainer.contract.manifest; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_intact_checkpoint_is_valid(saved: Path) -> None:
    newest, skipped = newest_valid(saved)
    assert newest is not None
    assert (newest.step, newest.problem, skipped) == (4, None, [])
    assert newest.bytes == sum(file.stat().st_size for file in newest.path.iterdir())


@pytest.mark.parametrize("percent", [0, 1, 50, 99])
@pytest.mark.parametrize("name", FILES)
def test_truncated_file_is_skipped(saved: Path, name: str, percent: int) -> None:
    file = saved / "step-0004" / name
    data = file.read_bytes()
    file.write_bytes(data[: len(data) * percent // 100])
    newest, skipped = newest_valid(saved)
    assert newest is not None
    assert newest.step == 2
    assert [info.step for info in skipped] == [4]
    assert skipped[0].problem is not None
    assert name in skipped[0].problem


@pytest.mark.parametrize("name", FILES)
def test_flipped_bit_is_noticed(saved: Path, name: str) -> None:
    file = saved / "step-0004" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    problem = inspect(saved / "step-0004").problem
    assert problem is not None
    assert name in problem


def test_changed_manifest_value_is_noticed(saved: Path) -> None:
    file = saved / "step-0004" / "manifest.json"
    document = json.loads(file.read_text())
    document["header"]["config"]["seed"] += 1
    file.write_text(json.dumps(document))
    with pytest.raises(ManifestInvalid, match="own digest"):
        read_manifest(file.parent)


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / "step-0004" / name).unlink()
    with pytest.raises(ManifestInvalid, match=name):
        verify(saved / "step-0004")


def test_checkpoint_under_other_step_name(saved: Path) -> None:
    shutil.copytree(saved / "step-0004", saved / "step-0009")
    problem = inspect(saved / "step-0009").problem
    assert problem == "manifest.json is of step 4, the directory says step 9"


def test_unfinished_and_foreign_directories(saved: Path) -> None:
    (saved / ".step-0006.123.part").mkdir()
    (saved / "step-best").mkdir()
    (saved / "step-0008").mkdir()
    assert [info.step for info in list_checkpoints(saved)] == [8, 4, 2]
    newest, skipped = newest_valid(saved)
    assert newest is not None
    assert newest.step == 4
    assert [info.problem for info in skipped] == ["manifest.json is missing: the save did not finish"]


def test_nothing_valid_is_left(saved: Path) -> None:
    for file in saved.glob("*/shared.pt"):
        file.write_bytes(b"")
    newest, skipped = newest_valid(saved)
    assert newest is None
    assert [info.step for info in skipped] == [4, 2]


def test_folders_of_run_and_stages(saved: Path) -> None:
    run = saved.parent
    for name in ("resumed", "artifacts"):
        shutil.copytree(saved, run / name / "checkpoints")
    assert [root.parent.name for root in checkpoint_roots(run)] == [run.name, "resumed"]


def test_removed_while_looked_at(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = manifest.read_manifest

    def remove_first(directory: Path) -> manifest.Manifest:
        shutil.rmtree(directory)
        return original(directory)

    monkeypatch.setattr(checkpoints, "read_manifest", remove_first)
    assert list_checkpoints(saved) == []
    assert newest_valid(saved) == (None, [])


def named(directory: Path, name: str, size: int = 6) -> None:
    """Make the manifest list one more file, with a valid seal."""
    found = read_manifest(directory)
    digest = hashlib.sha256(b"secret").hexdigest()
    files = {**found.files, name: manifest.FileEntry(bytes=size, sha256=digest)}
    made = found.model_copy(update={"files": files}).sealed()
    (directory / "manifest.json").write_text(made.model_dump_json())


@pytest.mark.parametrize("name", ["../../secret", "a/../../../secret", "/dev/zero", "..", ".", "", "a\nb", "\0"])
def test_manifest_reads_nothing_elsewhere(saved: Path, name: str) -> None:
    (saved.parent / "secret").write_bytes(b"secret")
    directory = saved / "step-0004"
    named(directory, name, 0 if name == "/dev/zero" else 6)
    problem = inspect(directory).problem
    assert problem is not None
    assert "not a file name inside the checkpoint" in problem


def test_listed_link_is_no_file(saved: Path) -> None:
    directory, outside = saved / "step-0004", saved.parent / "outside"
    outside.mkdir()
    for place in (outside / "secret", directory / "plain", directory / "inner" / "secret"):
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(b"secret")
    (directory / "link").symlink_to(outside / "secret")
    (directory / "linked").symlink_to(outside)
    intact = (directory / "manifest.json").read_bytes()
    for name, plain in (("plain", True), ("inner/secret", True), ("link", False), ("linked/secret", False)):
        (directory / "manifest.json").write_bytes(intact)
        named(directory, name)
        problem = f"{name}: {UNREADABLE}" if plain else f"{name} is not a regular file of this checkpoint"
        assert inspect(directory).problem == problem


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "1", '{"\\ud800": 1}'])
def test_foreign_manifest_is_damaged(saved: Path, text: str) -> None:
    (saved / "step-0004" / "manifest.json").write_text(text)
    assert "damaged" in str(inspect(saved / "step-0004").problem)
