"""Experiments with checkpoints that need real ranks: run by torchrun as a stage, judged by the tests.

`run` trains short trajectories of the kind `resume` one after the other, each with objects of its own (a new reducer
starts on its first bucket layout, as a new process does), and `ranks` tries the checkpoint store where ranks disagree.
"""

import errno
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD

from trainer.common.checkpoints import store as store_module
from trainer.common.checkpoints.errors import CheckpointError
from trainer.common.checkpoints.files import read_tensors
from trainer.common.checkpoints.identity import Identity
from trainer.common.checkpoints.state import TrainingState
from trainer.common.checkpoints.store import CheckpointStore
from trainer.common.context import StageContext
from trainer.common.distributed import Group, process_group
from trainer.contract.files import write_json_atomically
from trainer.contract.manifest import MANIFEST, file_digest, read_manifest
from trainer.kinds.cifar.train.setup import wrap
from trainer.kinds.resume.params import ResumeParams
from trainer.kinds.resume.train import FREE
from trainer.kinds.resume.trajectory import Trajectory, plan_shape, seed_rank
from trainer.tokens.corpus import build_corpus
from trainer.tokens.evaluate import evaluate
from trainer.tokens.plan import data_lock


class Lab:
    """Trains trajectories and keeps their checkpoints under `work/<variant>/<name>`."""

    def __init__(self, context: StageContext, group: Group, variant: str) -> None:
        self.params: ResumeParams = context.params.model_copy(update={"variant": variant})
        self.context, self.group = context, group
        self.root = context.paths.work / variant

    def store(self, name: str) -> CheckpointStore:
        """Return the checkpoints of one trajectory."""
        identity = Identity.of(self.context, data_lock(plan_shape(self.params)), free=FREE)
        config = {**identity.config, "variant": self.params.variant}
        return CheckpointStore(self.root / name, replace(identity, config=config))

    def train(
        self,
        name: str,
        until: int,
        *,
        source: str = "",
        at: int = 0,
        after_update: Callable[[Trajectory], None] = lambda _: None,
    ) -> Trajectory:
        """Train `name` up to `until` updates, from the checkpoint of `source` after `at` updates if one is given."""
        trajectory = Trajectory(self.params, self.group)
        if source:
            path = self.root / source / f"step-{at:04d}"
            trajectory.adopt(self.store(source).load(path, trajectory.state))
        trajectory.note_start(1)
        while trajectory.step < until:
            trajectory.update()
            after_update(trajectory)
        self.store(name).save(trajectory.step, trajectory.state, trajectory.record())
        return trajectory


def run(context: StageContext) -> None:
    """Train every trajectory the tests ask about."""
    with process_group(context) as group:
        for variant in ("correct", "default_buckets"):
            lab = Lab(context, group, variant)
            stop, end = context.params.stop_step, context.params.updates
            lab.train("continuous", end)
            lab.train("control", end)
            lab.train("first", stop)
            lab.train("resumed", end, source="first", at=stop)
        # Each further question at one world size only: a start of ranks is dear.
        if group.world_size == 2:
            _evaluated(Lab(context, group, "correct"))
        if group.world_size == 3:
            _often(Lab(context, group, "correct"))
        group.barrier("end of the lab")


def _often(lab: Lab) -> None:
    """Resume three times, the last time with nothing left to do."""
    end = lab.params.updates
    lab.train("second", end - 1, source="first", at=lab.params.stop_step)
    lab.train("third", end, source="second", at=end - 1)
    lab.train("fourth", end, source="third", at=end)


def _evaluated(lab: Lab) -> None:
    """Evaluate in the middle of a training: as the product does it, and in a way that touches what training uses."""
    corpus = build_corpus(lab.params.seed, lab.params.world_size)

    def aside(trajectory: Trajectory) -> None:
        if trajectory.step == lab.params.stop_step:
            evaluate(lab.group, trajectory.state.module, corpus.test)

    def drawing(trajectory: Trajectory) -> None:
        with torch.no_grad():
            trajectory.state.module(torch.zeros(1, 4, dtype=torch.int64))  # in training mode: dropout draws

    lab.train("evaluated", lab.params.updates, after_update=aside)
    lab.train("drawing", lab.params.updates, after_update=drawing)


class Normed(nn.Module):
    """A layer with batch statistics, which every rank gathers from its own data."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise and drop."""
        output: torch.Tensor = self.drop(self.norm(inputs))
        return output


def ranks(context: StageContext) -> None:
    """Try the store where the ranks differ; every rank writes what it saw to `work/ranks-<r>.json`."""
    with process_group(context) as group:
        bench = Bench(context, group)
        found: dict[str, Any] = {}
        for case in (uneven_draws, own_buffers, late_writer, full_disk, blind_rank, other_file, lost_file):
            found[case.__name__] = case(bench)
            group.barrier(f"end of {case.__name__}")
        write_json_atomically(context.paths.work / f"ranks-{group.rank}.json", found)


class Bench:
    """A small model on every rank and stores in folders of their own."""

    def __init__(self, context: StageContext, group: Group) -> None:
        self.rank, self.group, self.root = group.rank, group, context.paths.work
        self.identity = Identity(kind="lab", config={}, data_lock="", world_size=group.world_size)

    def state(self) -> TrainingState:
        """Return a new model, wrapped, and its optimizer."""
        model = wrap(Normed(), self.group, 25.0)
        return TrainingState(model=model, optimizer=SGD(model.parameters(), lr=0.1))

    def store(self, name: str) -> CheckpointStore:
        """Return the store of one case."""
        return CheckpointStore(self.root / name, self.identity)

    def outcome(self, action: Callable[[], Any]) -> str:
        """Return how `action` ended, as text."""
        try:
            action()
        except CheckpointError as error:
            return f"{type(error).__name__}: {error}"
        return "done"


def uneven_draws(bench: Bench) -> dict[str, Any]:
    """Rank 1 draws once more than rank 0 before the save; then rank 0's state is put on both, as the bug does."""
    store, state = bench.store("uneven"), bench.state()
    seed_rank(5, 0)  # the same seed everywhere: only the uneven draw tells the ranks apart
    if bench.rank == 1:
        torch.rand(1)
    path = store.save(1, state, {"rank": bench.rank}).path
    expected = torch.rand(3).tolist()
    seed_rank(6, 0)
    restored = store.load(path, state)
    right = torch.rand(3).tolist()
    first = read_tensors(path, "rank0.pt", read_manifest(path).files["rank0.pt"])
    torch.set_rng_state(first["rng"]["torch"])
    return {"expected": expected, "right": right, "wrong": torch.rand(3).tolist(), "sampler": restored.sampler["rank"]}


def own_buffers(bench: Bench) -> dict[str, Any]:
    """Batch statistics differ per rank and come back per rank; the shared file holds rank 0's."""
    store, state = bench.store("buffers"), bench.state()
    state.model(torch.full((4, 3), float(bench.rank + 1)))
    mean = [float(value) for value in state.module.get_buffer("norm.running_mean")]
    path = store.save(1, state, {}).path
    other = bench.state()
    store.load(path, other)
    shared = read_tensors(path, "shared.pt", read_manifest(path).files["shared.pt"])
    return {
        "mean": mean,
        "restored": [float(value) for value in other.module.get_buffer("norm.running_mean")],
        "shared": shared["model"]["norm.running_mean"].tolist(),
    }


def late_writer(bench: Bench) -> dict[str, Any]:
    """Rank 0 needs two seconds to create the directory and two to write; nobody runs ahead."""
    store, state = bench.store("late"), bench.state()
    original = store._open_aside

    def slowly(step: int) -> Path:
        time.sleep(2)
        return original(step)

    store._open_aside = slowly  # type: ignore[method-assign]
    path = store.save(1, state, {}).path
    restored = store.load_newest(state)
    return {"files": sorted(item.name for item in path.iterdir()), "step": restored and restored.step}


def full_disk(bench: Bench) -> dict[str, Any]:
    """Rank 1's disk is full in the middle of its second save."""
    store, state = bench.store("full"), bench.state()
    store.save(1, state, {})
    original = vars(store_module)["write_tensors"]

    def on_full_disk(path: Path, content: Any) -> Any:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    if bench.rank == 1:
        vars(store_module)["write_tensors"] = on_full_disk
    outcome = bench.outcome(lambda: store.save(2, state, {}))
    vars(store_module)["write_tensors"] = original
    bench.group.barrier("rank 0 has cleaned up")
    left = sorted(item.name for item in store.root.iterdir())
    restored = store.load_newest(state)
    return {"outcome": outcome.replace(str(bench.root), ""), "left": left, "step": restored and restored.step}


def blind_rank(bench: Bench) -> str:
    """Rank 1 sees no file where rank 0 sees one."""
    store, state = bench.store("blind"), bench.state()
    path = store.save(1, state, {}).path
    original = Path.is_file
    if bench.rank == 1:
        Path.is_file = lambda _: False  # type: ignore[method-assign, assignment]
    outcome = bench.outcome(lambda: store.load_newest(state))
    Path.is_file = original  # type: ignore[method-assign]
    assert path.exists()
    return outcome


def other_file(bench: Bench) -> str:
    """The ranks' files are swapped, with a manifest that fits them."""
    store, state = bench.store("swapped"), bench.state()
    path = store.save(1, state, {}).path
    if bench.rank == 0:
        (path / "rank0.pt").rename(path / "aside")
        (path / "rank1.pt").rename(path / "rank0.pt")
        (path / "aside").rename(path / "rank1.pt")
        manifest = read_manifest(path)
        entries = {
            name: entry.model_copy(update={"sha256": file_digest(path / name), "bytes": (path / name).stat().st_size})
            for name, entry in manifest.files.items()
        }
        sealed = manifest.model_copy(update={"files": entries}).sealed()
        (path / MANIFEST).write_text(sealed.model_dump_json())
    bench.group.barrier("files swapped")
    return bench.outcome(lambda: store.load_newest(state))


def lost_file(bench: Bench) -> dict[str, Any]:
    """Rank 1's file of the newest checkpoint is gone: both ranks go back to the one before."""
    store, state = bench.store("lost"), bench.state()
    store.save(1, state, {})
    path = store.save(2, state, {}).path
    if bench.rank == 0:
        (path / "rank1.pt").unlink()
    bench.group.barrier("file removed")
    restored = store.load_newest(state)
    bench.group.barrier("both restored")
    if bench.rank == 0:
        shutil.rmtree(store.root / "step-0001")
    bench.group.barrier("nothing left")
    return {"step": restored and restored.step, "none": bench.outcome(lambda: store.load_newest(state))}
