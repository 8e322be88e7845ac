"""Fixtures around a small training and its checkpoints."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.small_training import SmallTraining, make_identity
from trainer.common.checkpoints.identity import Identity
from trainer.common.checkpoints.store import CheckpointStore


@pytest.fixture
def training() -> SmallTraining:
    return SmallTraining()


@pytest.fixture
def fresh_training() -> Callable[[], SmallTraining]:
    """Another seed: the first training's state is present only if it was restored."""
    return lambda: SmallTraining(seed=99)


@pytest.fixture
def identity() -> Callable[..., Identity]:
    return make_identity


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", make_identity())
