"""A window without targets: no step at all, because a step on zeros would still move weights by their momentum."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from trainer.common.checkpoints.digest import digest
from trainer.common.distributed import Group
from trainer.common.telemetry import Telemetry
from trainer.contract.normalisation import EmptyWindowError
from trainer.contract.paths import AttemptPaths
from trainer.kinds.resume import trajectory as module
from trainer.kinds.resume.compare import LIMITS
from trainer.kinds.resume.params import ResumeParams
from trainer.kinds.resume.trajectory import Trajectory
from trainer.tokens.batches import make_batch, without_targets


def moving_weight() -> tuple[nn.Parameter, torch.optim.SGD]:
    """Return a weight of 1 whose momentum buffer is 1, learning rate 0.1."""
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    optimizer.state[weight]["momentum_buffer"] = torch.ones(1)
    return weight, optimizer


@pytest.fixture
def trajectory(tmp_path: Path) -> Iterator[Trajectory]:
    """Return a training of one rank that has made one update."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    telemetry = Telemetry(AttemptPaths(tmp_path), 0)
    group = Group(rank=0, world_size=1, device=torch.device("cpu"), backend="none", telemetry=telemetry)
    params = ResumeParams(batch_size_per_rank=2)
    training = Trajectory(params, group)
    training.update()
    yield training
    torch.distributed.destroy_process_group()


def test_empty_window_makes_no_step(trajectory: Trajectory, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(trajectory.state.shared())
    monkeypatch.setattr(module, "make_batch", lambda *given: without_targets(make_batch(*given)))
    with pytest.raises(EmptyWindowError, match="empty window at step 1"):
        trajectory.update()
    assert digest(trajectory.state.shared()) == before
    monkeypatch.undo()
    trajectory.update()
    assert digest(trajectory.state.shared()) != before
    assert any("ends the run on all ranks before its optimizer step" in limit for limit in LIMITS)


def test_step_on_zeros_moves_weights() -> None:
    weight, optimizer = moving_weight()
    weight.grad = torch.zeros(1)
    optimizer.step()
    assert weight.item() == pytest.approx(1 - 0.09)
