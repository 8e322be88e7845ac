"""Training setup of a rank: precision by the device's capabilities, and compatible checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.cifar_facts import parameters
from trainer.common.checkpoints.errors import CheckpointRefused
from trainer.common.context import StageContext
from trainer.common.distributed import Group
from trainer.common.telemetry import Telemetry
from trainer.contract.config import RunConfig
from trainer.contract.manifest import Header
from trainer.contract.paths import RunPaths
from trainer.kinds.cifar.data.split import DataCard
from trainer.kinds.cifar.params import KIND
from trainer.kinds.cifar.train import precision
from trainer.kinds.cifar.train.precision import PrecisionRefused, agreed_precision, refuse_missing_bf16
from trainer.kinds.cifar.train.stage import trajectory

CARD = DataCard(source="synthetic", classes=("a", "b"), counts={"train": [1, 1]}, digest="d1")


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    params = parameters(mode="both")
    paths = RunPaths(tmp_path)
    config = RunConfig(
        run_id=1,
        kind="cifar",
        params=params.model_dump(mode="json"),
        backend="gloo",
        device="cpu",
        datasets_dir=str(tmp_path),
    )
    return StageContext(
        config=config,
        kind=KIND,
        params=params,
        paths=paths,
        stage="train-no-sync",
        attempt=1,
        rank=0,
        world_size=1,
        local_rank=0,
        telemetry=Telemetry(paths.attempt("train-no-sync", 1), 0),
    )


@pytest.fixture
def group(context: StageContext) -> Group:
    return Group(rank=0, world_size=1, device=torch.device("cpu"), backend="none", telemetry=context.telemetry)


@pytest.mark.parametrize(
    ("wanted", "able", "found"), [("auto", True, "bf16"), ("auto", False, "fp32"), ("fp32", True, "fp32")]
)
def test_precision_by_ability(
    wanted: str, able: bool, found: str, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "computes_bf16", lambda _: able)
    assert agreed_precision(wanted, group) == found


def test_bf16_is_never_emulated(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "computes_bf16", lambda _: False)
    with pytest.raises(PrecisionRefused, match="use precision auto or fp32"):
        refuse_missing_bf16("bf16", group.device)
    with pytest.raises(PrecisionRefused, match="not every rank's device"):
        agreed_precision("bf16", group)
    monkeypatch.setattr(precision, "computes_bf16", lambda _: True)
    refuse_missing_bf16("bf16", group.device)
    assert agreed_precision("bf16", group) == "bf16"


def header(identity: Any, **changes: Any) -> Header:
    values = {
        "kind": "cifar",
        "step": 3,
        "world_size": 1,
        "data_lock": "d1",
        "lock": "",
        "config": dict(identity.config),
        "parameters": [],
        "optimizer": [],
        "created_at": 0.0,
        "versions": {},
    }
    return Header(**{**values, **changes})


def test_modes_are_separate_trajectories(context: StageContext) -> None:
    no_sync, every = (trajectory(context, CARD, mode) for mode in ("no_sync", "every"))
    no_sync.check(header(no_sync), "step-0003")
    with pytest.raises(CheckpointRefused, match=r"config\.mode is 'every' in the checkpoint and 'no_sync' here"):
        no_sync.check(header(every), "step-0003")


def test_other_images_refused(context: StageContext) -> None:
    identity = trajectory(context, CARD, "no_sync")
    with pytest.raises(CheckpointRefused, match="data_lock"):
        identity.check(header(identity, data_lock="d2"), "step-0003")


@pytest.mark.parametrize("field", ["epochs", "bucket_cap_mb", "activation_checkpointing", "seed", "train_size"])
def test_shaping_parameter_refused(field: str, context: StageContext) -> None:
    identity = trajectory(context, CARD, "no_sync")
    config = {**identity.config, field: "other"}
    with pytest.raises(CheckpointRefused, match=rf"config\.{field}"):
        identity.check(header(identity, config=config), "step-0003")
