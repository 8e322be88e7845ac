"""Real ranks that continue from the checkpoint of another trajectory: sound, mixed with another step, or narrowed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.checkpoints import renew
from tests.support.stages import LocalRun
from trainer.common.checkpoints.digest import digest
from trainer.contract.manifest import step_directory
from trainer.kinds.resume.differences import compare
from trainer.kinds.resume.evidence import Evidence

pytestmark = pytest.mark.torchrun
UPDATES, STOP = 6, 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> LocalRun:
    """Return a run with an uninterrupted and an interrupted training (after update 3), saved after every update."""
    root = tmp_path_factory.mktemp("origin") / "1"
    run = LocalRun.create(root, "resume", "quick", updates=UPDATES, stop_step=STOP, save_every=1)
    run.stage("interrupted")
    run.stage("continuous")
    return run


@pytest.fixture
def origin(trained: LocalRun) -> Path:
    """Return the checkpoint that the next stage starts from, as it was written."""
    path = step_directory(trained.paths.checkpoints("interrupted"), STOP)
    kept = trained.paths.root.parent / "kept"
    if not kept.exists():
        shutil.copytree(path, kept)
    shutil.rmtree(path)
    shutil.copytree(kept, path)
    shutil.rmtree(trained.paths.stage("resumed"), ignore_errors=True)
    return path


def errors(run: LocalRun) -> list[str]:
    """Return the error of every rank."""
    run.stage("resumed", expect=1)
    assert not run.paths.checkpoints("resumed").exists()
    return [json.loads(run.attempt("resumed").error(rank).read_text())["last_line"] for rank in range(2)]


def rewrite(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = torch.load(file, weights_only=True)
    change(content)
    torch.save(content, file)
    renew(file.parent)


def test_stop_is_the_same_state_as_on_the_way(trained: LocalRun, origin: Path) -> None:
    """Every part of a checkpoint belongs to its step: it equals that of a training stopped there."""
    other = step_directory(trained.paths.checkpoints("continuous"), STOP)
    for name in ("shared.pt", "rank0.pt", "rank1.pt"):
        left, right = (torch.load(path / name, weights_only=True) for path in (origin, other))
        parts = sorted(left.keys() - {"sampler"})
        assert [digest(left[part]) for part in parts] == [digest(right[part]) for part in parts]


def test_sound_origin_is_continued(trained: LocalRun, origin: Path) -> None:
    rewrite(origin / "shared.pt", lambda _: None)
    trained.stage("resumed")
    ends = (Evidence.read(name, trained.paths.checkpoints(name), UPDATES) for name in ("continuous", "resumed"))
    assert compare(*ends).same


def test_rank_file_of_another_step_stops_all(trained: LocalRun, origin: Path) -> None:
    shutil.copy(step_directory(origin.parent, STOP - 1) / "rank1.pt", origin / "rank1.pt")
    renew(origin)
    text = "rank 1: step-0003: rank1.pt is of step 2, manifest.json is of step 3"
    assert [line.endswith(text) for line in errors(trained)] == [True, True]


def test_narrowed_moment_stops_all(trained: LocalRun, origin: Path) -> None:
    def narrow(content: dict[str, Any]) -> None:
        moments = content["optimizer"]["state"][0]
        moments["momentum_buffer"] = moments["momentum_buffer"].bfloat16()

    rewrite(origin / "shared.pt", narrow)
    text = ".momentum_buffer: float32 when it was saved, bfloat16 in the file"
    found = errors(trained)
    assert all("rank 0: step-0003: shared.pt: optimizer." in line for line in found)
    assert [line.endswith(text) for line in found] == [True, True]
