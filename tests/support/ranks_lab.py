"""The checkpoint store where ranks differ or disagree, on real ranks: run by torchrun, judged by the tests."""

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD

from tests.support.checkpoints import renew
from trainer.common.checkpoints import content as content_module
from trainer.common.checkpoints.errors import CheckpointError
from trainer.common.checkpoints.files import read_tensors
from trainer.common.checkpoints.identity import Identity
from trainer.common.checkpoints.state import TrainingState
from trainer.common.checkpoints.store import CheckpointStore
from trainer.common.context import StageContext
from trainer.common.distributed import Group, process_group
from trainer.contract.files import write_json_atomically
from trainer.contract.manifest import read_manifest
from trainer.kinds.cifar.train.setup import wrap
from trainer.kinds.resume.trajectory import seed_rank


class Normed(nn.Module):
    """A layer with batch statistics, which every rank collects from its own data."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise and drop."""
        output: torch.Tensor = self.drop(self.norm(inputs))
        return output


def run(context: StageContext) -> None:
    """Test the store with ranks that differ; every rank writes its observations to `work/ranks-<r>.json`."""
    with process_group(context) as group:
        bench = Bench(context, group)
        found: dict[str, Any] = {}
        for case in (
            uneven_draws,
            own_buffers,
            late_writer,
            full_disk,
            blind_rank,
            other_file,
            older_file,
            narrow_file,
            lost_file,
        ):
            found[case.__name__] = case(bench)
            group.barrier(f"end of {case.__name__}")
        write_json_atomically(context.paths.work / f"ranks-{group.rank}.json", found, within=context.paths.root)


class Bench:
    """A small model on every rank, and a separate folder per store."""

    def __init__(self, context: StageContext, group: Group) -> None:
        self.rank, self.group, self.root = group.rank, group, context.paths.work
        self.run_root = context.paths.root
        self.identity = Identity(kind="lab", config={}, data_lock="", world_size=group.world_size)

    def state(self, momentum: float = 0.0) -> TrainingState:
        """Return a new model, wrapped, and its optimizer."""
        model = wrap(Normed(), self.group, 25.0)
        return TrainingState(model=model, optimizer=SGD(model.parameters(), lr=0.1, momentum=momentum))

    def store(self, name: str) -> CheckpointStore:
        """Return the store of one case."""
        return CheckpointStore(self.root / name, self.identity, run_root=self.run_root)

    def outcome(self, action: Callable[[], Any]) -> str:
        """Return how `action` ended, as text."""
        try:
            action()
        except CheckpointError as error:
            return f"{type(error).__name__}: {error}"
        return "done"


def uneven_draws(bench: Bench) -> dict[str, Any]:
    """Rank 1 draws once more than rank 0 before the save; then rank 0's state is restored on both, as the bug does."""
    store, state = bench.store("uneven"), bench.state()
    seed_rank(5, 0)  # the same seed everywhere: only the uneven draw distinguishes the ranks
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
    """Batch statistics differ per rank and are restored per rank; the shared file contains rank 0's."""
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
    """Rank 0 needs two seconds to create the directory and two to write; no other rank runs ahead."""
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
    original = vars(content_module)["write_tensors"]

    def on_full_disk(path: Path, content: Any) -> Any:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    if bench.rank == 1:
        vars(content_module)["write_tensors"] = on_full_disk
    outcome = bench.outcome(lambda: store.save(2, state, {}))
    vars(content_module)["write_tensors"] = original
    bench.group.barrier("rank 0 has cleaned up")
    left = sorted(item.name for item in store.root.iterdir())
    restored = store.load_newest(state)
    return {"outcome": outcome.replace(str(bench.root), ""), "left": left, "step": restored and restored.step}


def blind_rank(bench: Bench) -> str:
    """Rank 1 does not see a file that rank 0 sees."""
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
    """The ranks' files are swapped, with a matching manifest."""
    store, state = bench.store("swapped"), bench.state()
    path = store.save(1, state, {}).path
    if bench.rank == 0:
        (path / "rank0.pt").rename(path / "aside")
        (path / "rank1.pt").rename(path / "rank0.pt")
        (path / "aside").rename(path / "rank1.pt")
        renew(path)
    bench.group.barrier("files swapped")
    return bench.outcome(lambda: store.load_newest(state))


def older_file(bench: Bench) -> dict[str, str]:
    """Rank 1's file is that of an earlier step, with a matching manifest; rank 0 finds no fault."""
    store, state = bench.store("older"), bench.state()
    older, path = (store.save(step, state, {}).path for step in (1, 2))
    if bench.rank == 0:
        shutil.copy(older / "rank1.pt", path / "rank1.pt")
        renew(path)
        shutil.rmtree(older)
    bench.group.barrier("file replaced")
    return {
        "path": bench.outcome(lambda: store.load(path, state)),
        "newest": bench.outcome(lambda: store.load_newest(state)),
    }


def narrow_file(bench: Bench) -> str:
    """An optimizer moment in rank 0's shared file has a different type than was saved."""
    store, state = bench.store("narrow"), bench.state(momentum=0.9)
    state.model(torch.ones(4, 3)).sum().backward()
    state.optimizer.step()
    path = store.save(1, state, {}).path
    if bench.rank == 0:
        content = torch.load(path / "shared.pt", weights_only=True)
        moments = content["optimizer"]["state"][0]
        moments["momentum_buffer"] = moments["momentum_buffer"].bfloat16()
        torch.save(content, path / "shared.pt")
        renew(path)
    bench.group.barrier("state narrowed")
    return bench.outcome(lambda: store.load(path, state))


def lost_file(bench: Bench) -> dict[str, Any]:
    """Rank 1's file of the newest checkpoint is gone: both ranks use the previous checkpoint."""
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
