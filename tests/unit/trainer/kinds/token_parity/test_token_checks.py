"""Checks on crafted evidence: each passes on correct evidence and fails on its broken twin."""

import math
from typing import Any

import pytest
import torch

from trainer.contract.diagnosis import Cause, Diagnosis
from trainer.contract.result import Check, Relation, Verdict, verdict_of
from trainer.kinds.token_parity.checks import build_checks, gradient_parity
from trainer.kinds.token_parity.evidence import Evidence
from trainer.kinds.token_parity.handover import AUDITED, LOCALLY_EMPTY, MEAN_OF_MEANS, RANK_MEAN
from trainer.kinds.token_parity.params import TokenParityParams

RIGHT = torch.tensor([1.0, -2.0, 3.0])
TURNED = torch.tensor([1.2, -2.0, 3.0])


def _window(tokens: list[int], syncs: int = 1) -> dict[str, Any]:
    return {"tokens": tokens, "sums": [1.0, 2.0], "global_tokens": 20, "syncs": syncs, "bytes": 12, "buckets": 1}


def _report(rank: int) -> dict[str, Any]:
    tokens = [[4, 2], [8, 6]][rank]
    names = (AUDITED, RANK_MEAN, MEAN_OF_MEANS, LOCALLY_EMPTY)
    refusal = {"error": "EmptyWindowError", "text": "empty window", "errors": ["EmptyWindowError"] * 2, "syncs": 0}
    rules = {"correct": {"loss": 1.0, "gradient": 1.0}, "rank_mean": {"loss": 1.0, "gradient": 0.0}}
    return {
        "rank": rank,
        "weights": "w",
        "data_lock": "d",
        "windows": {name: _window(tokens) for name in names},
        "empty_window": refusal,
        "signed": rules,
    }


def _evidence(**changes: Any) -> Evidence:
    gradients = {AUDITED: RIGHT, RANK_MEAN: TURNED, MEAN_OF_MEANS: TURNED, LOCALLY_EMPTY: RIGHT}
    values: dict[str, Any] = {
        "params": TokenParityParams(),
        "plan": {"token_counts": [[4, 2], [8, 6]], "global_tokens": 20, "data_lock": "d"},
        "worked_example": [{"actual": 2.5, "expected": 2.5}],
        "reference": {"weights": "w", AUDITED: {"v": RIGHT}, LOCALLY_EMPTY: {"v": RIGHT}},
        "reports": [_report(0), _report(1)],
        "gradients": [{name: {"v": value} for name, value in gradients.items()} for _ in range(2)],
        "training": None,
    }
    return Evidence(**{**values, **changes})


def _judged(evidence: Evidence) -> dict[str, Check]:
    return {check.name: check for check in build_checks(evidence)}


def _with_gradient(window: str, *values: torch.Tensor, **params: Any) -> Evidence:
    evidence = _evidence(params=TokenParityParams(**params))
    for rank, value in enumerate(values):
        evidence.gradients[rank][window] = {"v": value}
    return evidence


def test_right_evidence_passes() -> None:
    checks = build_checks(_evidence())
    assert {check.name for check in checks if not check.passed} == set()
    assert verdict_of(checks) == Verdict.PASS


def test_checks_say_how_they_are_read() -> None:
    checks = build_checks(_evidence())
    assert all("relation" in check.model_fields_set and check.fits for check in checks)
    equal = {check.name for check in checks if check.relation is Relation.EQUAL}
    assert equal == {"worked_example", "empty_window", "sync_count"}
    above = [(check.name, check.strict) for check in checks if check.relation is Relation.AT_LEAST]
    assert above == [("negative_control", True)]
    assert not any(check.strict for check in checks if check.relation is Relation.AT_MOST)


def test_control_shows_the_error_that_rejects() -> None:
    # With a wide relative tolerance the largest error is inside its limit; the rule is rejected by a smaller one.
    wrong = torch.tensor([1.0, -2.0, 3.0]) + torch.tensor([0.9, 0.0, 1.2])
    evidence = _with_gradient(RANK_MEAN, wrong, wrong, atol=0.0, rtol=0.5)
    for gradients in evidence.gradients:
        gradients[MEAN_OF_MEANS] = {"v": wrong}
    control = _judged(evidence)["negative_control"]
    assert evidence.rank_mean.max_abs_error < evidence.rank_mean.limit
    assert control.passed
    assert control.measured == pytest.approx(0.9)
    assert control.limit == pytest.approx(0.5)


def test_one_rank_outside_fails_with_the_facts_in_order() -> None:
    check = _judged(_with_gradient(AUDITED, RIGHT, RIGHT / 2))["gradient_parity"]
    assert check.passed is False
    facts = ["(1) global count", "(2) `no_sync`", "(3) initial state", "(4) data"]
    assert [line[: len(fact)] for line, fact in zip(check.detail.splitlines()[1:], facts, strict=True)] == facts


def test_failed_parity_quotes_the_diagnosis() -> None:
    found = Diagnosis(
        status="identified",
        causes=[Cause(name="rank_mean", explanation="Rank 0's tokens weigh 3.0 times those of rank 1.")],
        weights=None,
        residual=0.0,
        suggestion="All-reduce the counts.",
    )
    detail = gradient_parity(_with_gradient(AUDITED, TURNED, TURNED), found).detail
    assert "Diagnosis: identified, rank_mean." in detail
    assert "3.0 times those of rank 1" in detail
    assert "Suggestion: All-reduce the counts." in detail
    assert "Diagnosis" not in gradient_parity(_evidence(), found).detail


def test_other_weights_or_data_are_named() -> None:
    evidence = _with_gradient(AUDITED, RIGHT, TURNED)
    evidence.reports[1].update(weights="x", data_lock="y")
    detail = _judged(evidence)["gradient_parity"].detail
    assert "ranks [1] started from different weights" in detail
    assert "ranks [1] have different data" in detail


def test_agreeing_rules_are_inconclusive() -> None:
    checks = build_checks(_with_gradient(RANK_MEAN, RIGHT, RIGHT))
    control = next(check for check in checks if check.name == "negative_control")
    assert control.passed is None
    assert "tokens per rank [6, 14]" in control.detail
    assert verdict_of(checks) == Verdict.INCONCLUSIVE


def test_wide_tolerance_rejects_nothing() -> None:
    control = _judged(_evidence(params=TokenParityParams(atol=1)))["negative_control"]
    assert control.passed is False
    assert "so wide that rank_mean and mean_of_means passes" in control.detail


def test_either_wrong_rule_must_be_rejected() -> None:
    control = _judged(_with_gradient(MEAN_OF_MEANS, RIGHT, RIGHT))["negative_control"]
    assert control.passed is None
    assert "mean_of_means" in control.detail


def test_rank_that_went_on_alone_fails() -> None:
    evidence = _evidence()
    evidence.reports[1]["empty_window"] = {"error": None, "text": "accepted", "errors": [], "syncs": 1}
    check = _judged(evidence)["empty_window"]
    assert (check.passed, check.measured, check.limit) == (False, 1, 2)


def test_nan_on_the_empty_rank_fails() -> None:
    check = _judged(_with_gradient(LOCALLY_EMPTY, RIGHT, RIGHT * math.nan))["locally_empty_rank"]
    assert (check.passed, check.measured) == (False, "NaN")


def test_every_wrong_count_is_told() -> None:
    for wrong in (0, 2):
        evidence = _evidence()
        evidence.reports[1]["windows"][RANK_MEAN] = _window([8, 6], syncs=wrong)
        check = _judged(evidence)["sync_count"]
        assert (check.passed, check.measured) == (False, wrong)
        assert "1 windows differ from 1" in check.detail


def test_training_windows_count_too() -> None:
    training = {"syncs": [[1, 1], [1, 4]]}
    assert _judged(_evidence(training=training))["sync_count"].measured == 4


def test_signed_gradients_must_differ() -> None:
    evidence = _evidence()
    evidence.reports[0]["signed"] = {rule: {"loss": 1.0, "gradient": 1.0} for rule in ("correct", "rank_mean")}
    check = _judged(evidence)["same_loss_different_gradient"]
    assert (check.passed, check.measured) == (False, 1.0)
