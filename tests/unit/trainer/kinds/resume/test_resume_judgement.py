"""Differences, their diagnosis and the checks, on synthetic trajectories."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.evidence import STOP, UPDATES, change, make_evidence
from trainer.contract.checkpoints import CheckpointInfo
from trainer.contract.result import Check, Relation, Verdict, verdict_of
from trainer.kinds.resume.diagnosis import diagnose
from trainer.kinds.resume.differences import compare, difference, first_other_loss
from trainer.kinds.resume.evidence import Evidence
from trainer.kinds.resume.judgement import Judgement, checks, judge
from trainer.kinds.resume.kills import Recovery
from trainer.kinds.resume.panels import distance_bars
from trainer.kinds.resume.params import OPTIMIZER_FAULT, RNG_FAULT, SAMPLER_FAULT

STARTS = {RNG_FAULT: "rng", SAMPLER_FAULT: "sampler", OPTIMIZER_FAULT: "optimizer"}


def test_equal_states_have_no_difference() -> None:
    result = compare(make_evidence("continuous"), make_evidence("resumed"))
    assert result.same
    assert set(result.optimizer) >= {"weight.momentum_buffer", "group0.lr", "scheduler.last_epoch"}


def test_one_component_is_found() -> None:
    left, right = torch.zeros(3, 2), torch.zeros(3, 2)
    right[2, 1] = -2.0
    assert (difference(left, right).largest, difference(left, right).unequal) == (2.0, 1)


def test_sign_of_zero_is_a_bit() -> None:
    found = difference(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert (found.largest, found.unequal) == (0.0, 1)


def test_same_nan_is_no_difference() -> None:
    value = torch.tensor([math.nan, 1.0])
    assert difference(value, value.clone()).unequal == 0
    assert difference(value, torch.tensor([1.0, 1.0])).largest == math.inf


@pytest.mark.parametrize("other", [None, torch.zeros(2, 3), torch.zeros(3, 2, dtype=torch.float64)])
def test_what_cannot_be_compared(other: torch.Tensor | None) -> None:
    found = difference(torch.zeros(3, 2), other)
    assert found.largest == math.inf
    assert found.unequal


def edit(part: str) -> Evidence:
    """Return a resumed trajectory that differs in exactly one part."""
    evidence = make_evidence("resumed")
    if part == "parameters":
        weight = evidence.shared["model"]["weight"]
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(torch.inf))
    elif part == "optimizer":
        evidence.shared["optimizer"]["state"][0]["momentum_buffer"][3, 2] += 1
    elif part == "rng":
        evidence.ranks[1]["rng"]["torch"][100] ^= 1
    elif part == "sampler":
        evidence.ranks[1]["sampler"]["ids"][4, 1, 0] += 1
    elif part == "losses":
        evidence.ranks[0]["sampler"]["losses"][UPDATES - 1] *= 1 + 2**-52
    return evidence


def judged(
    resumed: Evidence | None = None,
    *,
    control: Evidence | None = None,
    twins: Mapping[str, Evidence] | None = None,
    problem: str | None = None,
    **given: Any,
) -> Judgement:
    if twins is None:
        twins = {fault: change(make_evidence(fault), start=start, amount=0.5) for fault, start in STARTS.items()}
    info = CheckpointInfo(
        path=Path("step-0006"), step=6, bytes=1, digest="d", pinned=True, created_at=0.0, problem=problem
    )
    values: dict[str, Any] = {"kills": None, "kills_planned": 0, **given}
    return judge(
        make_evidence("continuous"),
        resumed or make_evidence("resumed"),
        control or make_evidence("control"),
        twins,
        checkpoints={"resumed": [info]},
        **values,
    )


def failed(found: list[Check]) -> list[str]:
    return [check.name for check in found if check.passed is not True]


def test_equal_trajectories_pass() -> None:
    found = checks(judged())
    assert failed(found) == []
    assert verdict_of(found) is Verdict.PASS
    assert [check.name for check in found] == [
        *("parameters", "optimizer", "rng", "sampler", "losses", "control", "rng_not_restored_detected"),
        *("sampler_restart_detected", "optimizer_not_restored_detected", "checkpoints_valid"),
    ]


def test_checks_say_how_they_are_read() -> None:
    kills = [Recovery(attempt=1, step=7, phase="backward", checkpoint_step=5)]
    found = checks(judged(kills=kills, kills_planned=1))
    assert all("relation" in check.model_fields_set and check.fits for check in found)
    above = {check.name: check.strict for check in found if check.relation is Relation.AT_LEAST}
    assert above == {**{f"{fault}_detected": True for fault in STARTS}, "kills_survived": False}
    assert {check.relation for check in found if check.name not in above} == {Relation.EQUAL}


def test_fault_without_numbers_is_noticed() -> None:
    # Generators differ but no compared number does: detected, and no difference is reported.
    twins = {fault: change(make_evidence(fault), start=start, amount=0.5) for fault, start in STARTS.items()}
    twins[RNG_FAULT] = change(edit("rng"), start="rng")
    found = {check.name: check for check in checks(judged(twins=twins))}
    assert found["rng_not_restored_detected"].passed
    assert found["rng_not_restored_detected"].measured is None
    twins[RNG_FAULT] = change(edit("optimizer"), start="rng")
    found = {check.name: check for check in checks(judged(twins=twins))}
    assert found["rng_not_restored_detected"].measured == 1.0


def test_numbers_that_are_none_fail() -> None:
    broken = make_evidence("resumed")
    broken.shared["model"]["weight"][0, 0] = math.nan
    found = {check.name: check for check in checks(judged(broken))}
    assert (found["parameters"].passed, found["parameters"].measured) == (False, "Infinity")


@pytest.mark.parametrize("part", ["parameters", "optimizer", "rng", "sampler", "losses"])
def test_each_part_fails_own_check(part: str) -> None:
    found = checks(judged(edit(part)))
    assert failed(found) == [part]
    assert verdict_of(found) is Verdict.FAIL


def test_other_type_is_named_with_both() -> None:
    evidence = make_evidence("resumed")
    moments = evidence.shared["optimizer"]["state"][0]
    moments["momentum_buffer"] = moments["momentum_buffer"].bfloat16()
    (check,) = [item for item in checks(judged(evidence)) if item.name == "optimizer"]
    assert not check.passed
    assert "first in weight.momentum_buffer (float32 and bfloat16)" in check.detail


def test_headline_shows_who_ended_elsewhere() -> None:
    right, wrong = (distance_bars(judged(evidence)) for evidence in (None, change(make_evidence("resumed"), amount=2)))
    assert right.labels[:2] == ["resumed", "control"]
    assert right.groups[0].values[:2] == [0, 0]
    assert all(value > 0 for value in right.groups[0].values[2:] if isinstance(value, float))
    assert wrong.groups[0].values[:2] == [pytest.approx(2), 0]


def test_irreproducible_machine_is_inconclusive() -> None:
    found = checks(judged(edit("parameters"), control=change(make_evidence("control"), amount=1e-9)))
    assert "control" in failed(found)
    assert verdict_of(found) is Verdict.INCONCLUSIVE
    (control,) = [check for check in found if check.name == "control"]
    assert "not bit-reproducible on this machine" in control.detail


def test_fault_without_effect_stays_open() -> None:
    twins = {fault: change(make_evidence(fault), start=start, amount=0.5) for fault, start in STARTS.items()}
    twins[RNG_FAULT] = make_evidence("without effect")
    found = checks(judged(twins=twins))
    assert failed(found) == ["rng_not_restored_detected"]
    assert verdict_of(found) is Verdict.INCONCLUSIVE


def test_fault_noticed_as_other_fault() -> None:
    twins = {fault: change(make_evidence(fault), start=start, amount=0.5) for fault, start in STARTS.items()}
    twins[RNG_FAULT] = twins[OPTIMIZER_FAULT]
    found = checks(judged(twins=twins))
    assert failed(found) == ["rng_not_restored_detected"]
    assert verdict_of(found) is Verdict.FAIL


def test_damaged_checkpoint_fails() -> None:
    assert failed(checks(judged(problem="rank0.pt is missing"))) == ["checkpoints_valid"]


def test_too_few_kills_stay_open() -> None:
    kills = [Recovery(attempt=1, step=7, phase="backward", checkpoint_step=5)]
    assert failed(checks(judged(kills=kills, kills_planned=1))) == []
    found = checks(judged(kills=kills, kills_planned=2))
    assert failed(found) == ["kills_survived"]
    assert verdict_of(found) is Verdict.INCONCLUSIVE
    assert kills[0].summary() == {"step": 7, "phase": "backward", "checkpoint_step": 5, "steps_repeated": 2}


@pytest.mark.parametrize(
    ("start", "cause"),
    [("optimizer", "optimizer"), ("scheduler", "optimizer"), ("sampler", "plan position"), ("rng", "per-rank RNG")],
)
def test_cause_is_what_was_not_restored(start: str, cause: str) -> None:
    right = change(make_evidence("resumed"), start=start, amount=0.1)
    found = diagnose(make_evidence("continuous"), right)
    assert found.name == cause
    assert "rank 1 continued after update 3" in found.text


def test_causes_are_told_in_order() -> None:
    right = make_evidence("resumed")
    expected = ["per-rank RNG", "plan position", "data lock", "config", "optimizer"]
    header = right.manifest.header
    for cause in expected:
        if cause == "config":
            header.config["seed"] = 48
        elif cause == "data lock":
            changed = header.model_copy(update={"data_lock": "b" * 64})
            right = Evidence(
                name=right.name,
                manifest=right.manifest.model_copy(update={"header": changed}),
                shared=right.shared,
                ranks=right.ranks,
            )
            header = changed
        else:
            change(right, start={"per-rank RNG": "rng", "plan position": "sampler"}.get(cause, cause))
        assert diagnose(make_evidence("continuous"), right).name == cause


def layouts(world_size: int, variant: str) -> tuple[Evidence, Evidence]:
    left = make_evidence("continuous", world_size=world_size, variant=variant)
    right = make_evidence("resumed", world_size=world_size, variant=variant)
    right.ranks[0]["sampler"]["layouts"][STOP] = "first"
    return left, change(right, amount=1e-9)


def test_other_buckets_are_the_last_suspect() -> None:
    found = diagnose(*layouts(3, "default_buckets"))
    assert found.name == "bucket layout"
    assert "update 4 was reduced in buckets rebuilt uninterrupted and first after the restart" in found.text
    left, right = layouts(3, "default_buckets")
    assert diagnose(left, change(right, start="rng")).name == "per-rank RNG"


@pytest.mark.parametrize(("world_size", "variant"), [(2, "default_buckets"), (3, "correct")])
def test_buckets_that_cannot_matter(world_size: int, variant: str) -> None:
    assert diagnose(*layouts(world_size, variant)).name == "unknown"


def test_difference_before_other_buckets() -> None:
    left, right = layouts(3, "default_buckets")
    right.ranks[0]["sampler"]["losses"][STOP - 1] += 1
    assert first_other_loss(left, right) == STOP
    assert diagnose(left, right).name == "unknown"
