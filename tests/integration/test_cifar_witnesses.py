"""Both witnesses of synchronisation on real ranks: correct trainings pass, and each broken twin is named."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.stages import LocalRun
from trainer.contract.kinds import StagePlan
from trainer.contract.paths import RunPaths
from trainer.contract.result import Check
from trainer.kinds.cifar.audit.checks import confusion_check, count_checks, gradient_syncs_check
from trainer.kinds.cifar.audit.pair_checks import pair_checks
from trainer.kinds.cifar.audit.witness_check import witness_check
from trainer.kinds.cifar.facts import ModeFacts
from trainer.kinds.cifar.params import CifarParams

pytestmark = pytest.mark.torchrun

SIZES: dict[str, Any] = {
    "world_size": 3,
    "epochs": 2,
    "batch_size": 2,
    "train_size": 48,
    "validation_size": 10,
    "test_size": 50,
    "precision": "fp32",
}
Load = Callable[[str], ModeFacts]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    run = LocalRun.create(tmp_path_factory.mktemp("lab") / "1", "cifar", mode="no_sync", **SIZES)
    experiments = StagePlan(
        name="lab", title="Lab", entry="tests.support.cifar_lab:run", launcher="torchrun", arguments={}
    )
    run = dataclasses.replace(run, plan=[run.plan[0], experiments])
    run.all_stages()
    return run.paths


@pytest.fixture(scope="module")
def facts(lab: RunPaths) -> Load:
    def load(experiment: str) -> ModeFacts:
        root = RunPaths(lab.work / "lab" / experiment)
        return ModeFacts.load(root, "every" if experiment.endswith("every") else "no_sync")

    return load


def parameters(**changes: object) -> CifarParams:
    return CifarParams.model_validate({"mode": "no_sync", **SIZES, **changes})


def syncs_and_witness(facts: ModeFacts) -> tuple[Check, Check]:
    return gradient_syncs_check(parameters(), [facts]), witness_check(parameters(), [facts])


@pytest.mark.parametrize("experiment", ["every", "no_sync", "buckets_every", "buckets_no_sync", "checkpointing"])
def test_right_training_convinces_both(experiment: str, facts: Load) -> None:
    found = facts(experiment)
    checks = [*count_checks(parameters(), [found]), witness_check(parameters(), [found])]
    assert [check.name for check in checks if check.passed is not True] == []
    assert [epoch.gradient_syncs for epoch in found.epochs] == [[8 if found.mode == "every" else 2] * 3] * 2


def test_first_and_later_windows_sampled(facts: Load) -> None:
    found = facts("buckets_no_sync")
    assert [(item.epoch, item.evidence.step) for item in found.windows] == [(1, 0), (1, 1), (2, 2)]
    assert all(item.evidence.reductions == item.hook_count == 1 for item in found.windows)
    assert all(item.evidence.size == found.gradient_bytes == 558_538 * 4 for item in found.windows)


def test_several_buckets_are_one_synchronisation(facts: Load) -> None:
    assert [item.evidence.events for item in facts("no_sync").windows] == [1, 1, 1]
    # DDP starts with its own buckets and rebuilds them after the first step, so only later windows have several.
    events = [item.evidence.events for item in facts("buckets_no_sync").windows]
    assert events[0] < min(events[1:])
    assert sum(epoch.buckets for epoch in facts("buckets_no_sync").epochs) > 4


def test_modes_differ_in_syncs_alone(facts: Load) -> None:
    checks = pair_checks(parameters(mode="both"), facts("every"), facts("no_sync"))
    assert {check.name: check.passed for check in checks} == {
        "same_start": True,
        "same_steps": True,
        "sync_ratio": True,
    }
    assert checks[2].measured == 4


def test_bytes_follow_the_syncs(facts: Load) -> None:
    for experiment in ("every", "no_sync"):
        found = facts(experiment)
        assert [epoch.reduced_bytes for epoch in found.epochs] == [
            epoch.gradient_syncs[0] * found.gradient_bytes for epoch in found.epochs
        ]
        assert found.communication_seconds > 0


def test_double_hook_is_blamed(facts: Load) -> None:
    syncs, witness = syncs_and_witness(facts("hook_double"))
    assert (syncs.passed, syncs.measured, syncs.limit) == (False, 4, 2)
    assert (witness.passed, witness.measured, witness.limit) == (False, 3, 6)
    assert "the hook counted 6, the profiler 3 (+3), expected 3: the hook disagrees" in witness.detail


def test_missing_hook_is_blamed(facts: Load) -> None:
    syncs, witness = syncs_and_witness(facts("hook_missing"))
    assert (syncs.passed, syncs.measured) == (False, 0)
    assert "the hook counted 0, the profiler 3 (-3), expected 3: the hook disagrees" in witness.detail
    assert witness.passed is False


def test_forward_outside_is_named(facts: Load) -> None:
    syncs, witness = syncs_and_witness(facts("forward_outside"))
    assert (syncs.passed, syncs.measured, syncs.limit) == (False, 8, 2)
    assert "outside `no_sync`" in syncs.detail
    assert witness.passed is True
    assert "Both saw 4 synchronisations" in witness.detail


def test_forward_outside_keeps_the_gradient(lab: RunPaths) -> None:
    right, outside = (weights(lab, name)[0] for name in ("no_sync", "forward_outside"))
    # AdamW turns the last bits of a tiny gradient into steps up to the learning rate, so only most weights must agree.
    close = sum(abs(a - b) <= 1e-3 for a, b in zip(right, outside, strict=True))
    assert close / len(right) > 0.95


def test_bypassed_wrapper_lets_ranks_drift(lab: RunPaths, facts: Load) -> None:
    syncs, witness = syncs_and_witness(facts("bypassed"))
    assert (syncs.passed, syncs.measured) == (False, 0)
    assert "through `.module`" in syncs.detail
    assert (witness.passed, witness.measured, witness.limit) == (True, 0, 0)
    drifted, common = weights(lab, "bypassed"), weights(lab, "no_sync")
    assert drifted[0] != drifted[1]
    assert common[0] == common[1] == common[2]


def test_wrong_mode_is_named(facts: Load) -> None:
    syncs, _ = syncs_and_witness(facts("always"))
    assert syncs.passed is False
    assert "`every` was used by mistake" in syncs.detail


def test_blind_profiler_is_blamed(facts: Load) -> None:
    syncs, witness = syncs_and_witness(facts("blind_profiler"))
    assert syncs.passed is True
    assert witness.passed is False
    assert "the profiler disagrees" in witness.detail


def test_three_ranks_count_every_image_once(facts: Load) -> None:
    # 50 is not a multiple of 3: a padding sampler would count 51.
    found = facts("no_sync")
    assert confusion_check(parameters(), [found]).passed is True
    assert sum(map(sum, found.test.confusion)) == 50
    assert -1 not in found.predicted


def test_checkpointing_changes_no_score(lab: RunPaths, facts: Load) -> None:
    assert weights(lab, "checkpointing") == weights(lab, "no_sync")
    assert facts("checkpointing").test == facts("no_sync").test


def weights(lab: RunPaths, experiment: str) -> list[list[float]]:
    path: Path = lab.work / "lab" / experiment / "work" / "weights.json"
    content: list[list[float]] = json.loads(path.read_text())
    return content
