"""Token parity with two real ranks: the right rule passes, every planted mistake fails, every count is measured."""

import json
import os
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from tests.support.contexts import stage_context
from tests.support.results import saved_result
from tests.support.stages import ROOT, LocalRun
from tests.unit.trainer.contract.test_normalisation import FIXTURE
from trainer.contract.kinds import StagePlan
from trainer.contract.normalisation import HYPOTHESES, unsynchronised
from trainer.contract.paths import RunPaths
from trainer.contract.result import Check, Result, Verdict, verdict_of
from trainer.kinds.token_parity.checks import build_checks
from trainer.kinds.token_parity.compare import run as compare_stage
from trainer.kinds.token_parity.evidence import Evidence
from trainer.kinds.token_parity.forensics import diagnosis
from trainer.kinds.token_parity.handover import AUDITED, Handover
from trainer.kinds.token_parity.panels import ERRORS_TITLE
from trainer.kinds.token_parity.params import TokenParityParams, Variant

pytestmark = pytest.mark.torchrun
LAB = StagePlan(name="lab", title="Lab", entry="tests.support.ddp_lab:run", launcher="torchrun")
VARIANTS = StagePlan(name="variants", title="Variants", entry="tests.support.ddp_lab:run_variants", launcher="torchrun")


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> LocalRun:
    run = LocalRun.create(tmp_path_factory.mktemp("quick") / "1", "token-parity")
    run.all_stages()
    run.plan.append(LAB)
    run.stage("lab")
    return run


@pytest.fixture(scope="module")
def lab(quick: LocalRun) -> list[dict[str, Any]]:
    return [json.loads((quick.paths.work / f"lab-rank{rank}.json").read_text()) for rank in (0, 1)]


def _checks(result: Result) -> dict[str, Check]:
    return {check.name: check for check in result.checks}


def test_quick_audit_passes(quick: LocalRun) -> None:
    result = quick.result()
    assert result.verdict == Verdict.PASS
    names = [
        "worked_example",
        "gradient_parity",
        "negative_control",
        "empty_window",
        "locally_empty_rank",
        "sync_count",
    ]
    assert set(names) <= set(_checks(result))
    assert result.summary["components"] == 282_628
    assert result.summary["max_abs_error"] < 1e-6
    assert result.headline == ERRORS_TITLE
    assert result.diagnosis is not None
    assert (result.diagnosis.status, result.diagnosis.causes) == ("clean", [])
    assert result.summary["violations"] == 0
    assert result.summary["wrong_violations"] > 200_000
    assert result.summary["global_tokens"] == sum(map(sum, result.summary["token_counts"]))
    assert result.environment.backend == "gloo"
    assert result.environment.cpus == len(os.sched_getaffinity(0))
    assert any("NCCL was not validated" in limit for limit in result.limits)


def test_every_rank_starts_and_ends(quick: LocalRun) -> None:
    for rank in (0, 1):
        events = quick.events("distributed", rank)
        assert (events[0]["type"], events[-1]["type"]) == ("start", "end")
        assert (events[0]["backend"], events[0]["world_size"]) == ("gloo", 2)
        assert [event["count"] for event in events if event["type"] == "sync"] == [1, 1, 1, 1]
    assert [rank["exit_code"] for rank in quick.ranks_exit("distributed")["ranks"]] == [0, 0]


def test_tight_tolerance_counts_true_violations(quick: LocalRun, tmp_path: Path) -> None:
    context = stage_context(tmp_path / "1", atol=1e-12, rtol=0.0)
    context.paths.work.symlink_to(quick.paths.work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.common.process.die_with_parent", lambda: None)
        compare_stage(context)
    result = saved_result(context.paths.result)
    handover = Handover(quick.paths)
    reference = torch.load(handover.reference, weights_only=True)[AUDITED]
    ranks = [torch.load(handover.gradients(rank), weights_only=True)[AUDITED] for rank in (0, 1)]
    outside = sum(
        sum((found[name].double() - value.double()).abs() > 1e-12 for found in ranks).bool().sum().item()
        for name, value in reference.items()
    )
    assert result.verdict == Verdict.FAIL
    assert result.summary["violations"] == outside > 0
    assert _checks(result)["gradient_parity"].limit == 1e-12


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> LocalRun:
    """A window of every variant; with 3 micro-batches per rank, so that no two mistakes give the same number."""
    run = LocalRun.create(
        tmp_path_factory.mktemp("planted") / "1", "token-parity", accumulation=3, batch_size_per_rank=3
    )
    for stage in ("prepare", "check-loss", "reference"):
        run.stage(stage)
    run.plan.append(VARIANTS)
    run.stage("variants")
    return run


def _evidence(run: LocalRun, variant: str) -> Evidence:
    main, planted = Handover(run.paths), Handover(RunPaths(run.paths.work / variant))
    return Evidence(
        params=TokenParityParams(variant=variant, accumulation=3, batch_size_per_rank=3),  # type: ignore[arg-type]
        plan=json.loads(main.plan.read_text()),
        worked_example=json.loads(main.worked_example.read_text()),
        reference=torch.load(main.reference, weights_only=True),
        reports=[json.loads(planted.report(rank).read_text()) for rank in (0, 1)],
        gradients=[torch.load(planted.gradients(rank), weights_only=True) for rank in (0, 1)],
        training=None,
    )


@pytest.mark.parametrize("variant", get_args(Variant))
def test_each_planted_mistake_fails_and_is_named(planted: LocalRun, variant: str) -> None:
    evidence = _evidence(planted, variant)
    found = diagnosis(evidence)
    checks = {check.name: check for check in build_checks(evidence, found)}
    right = variant == "correct"
    assert verdict_of(list(checks.values())) == (Verdict.PASS if right else Verdict.FAIL)
    assert checks["gradient_parity"].passed is (variant in ("correct", "extra_syncs"))
    assert checks["negative_control"].passed is True
    assert checks["sync_count"].passed is (variant not in ("extra_syncs", "unsynchronised_step"))
    assert [cause.name for cause in found.causes] == ([] if right else [variant])
    assert found.status == ("clean" if right else "identified")
    assert (found.suggestion == "") is right
    assert found.weights is not None
    assert float(found.residual or 0) < 1e-5


def test_numbers_of_the_causes_are_those_planted(planted: LocalRun) -> None:
    numbers = {
        variant: diagnosis(_evidence(planted, variant)).causes[0].parameters
        for variant in ("local_count_as_global", "repeated_samples", "unreduced_parameters", "extra_syncs")
    }
    assert numbers["local_count_as_global"] == {"count_of_rank": 0}
    assert numbers["repeated_samples"] == {"rank": 1, "micro_batch": 0}
    assert sorted(numbers["unreduced_parameters"]["parameters"]) == ["head.bias", "head.weight"]
    assert numbers["extra_syncs"]["after_backwards"] == [0, 1, 2]


def test_large_windows_are_not_solved(planted: LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.kinds.token_parity.forensics.MOST_CELLS", 5)
    found = {variant: diagnosis(_evidence(planted, variant)) for variant in ("correct", "rank_mean")}
    assert (found["correct"].status, found["rank_mean"].status) == ("clean", "unexplained")
    assert found["rank_mean"].suggestion == "Run with at most 2 micro-batches per rank."


def test_fixture_matches_exact_fractions(lab: list[dict[str, Any]]) -> None:
    exact = {**HYPOTHESES, "weighted_means": HYPOTHESES["correct"]}
    for rank in (0, 1):
        for rule, gradient in lab[rank]["rules"].items():
            assert gradient == pytest.approx(float(exact[rule](FIXTURE)), rel=1e-12), rule


def test_loop_mistakes_show_where_they_are(lab: list[dict[str, Any]]) -> None:
    right = pytest.approx(2.6, rel=1e-12)
    alone = unsynchronised(FIXTURE)
    for rank in (0, 1):
        found = lab[rank]["mistakes"]
        assert found["right"] == [right, 1]
        assert found["forward_outside"] == [right, 3]  # the value does not show it: only the count does
        assert found["every"] == [right, 3]
        assert found["bypassed"] == [pytest.approx(float(alone[rank])), 0]
        assert found["hook_sums"][0] == pytest.approx(5.2)
        assert found["value_reduced"] == [pytest.approx(float(alone[rank])), 0]


def test_counter_counts_models_not_buckets(lab: list[dict[str, Any]]) -> None:
    for counters in (lab[0]["counters"], lab[1]["counters"]):
        for name in ("one", "many", "ordered", "unused", "waiting"):
            assert [window["count"] for window in counters[name]] == [1, 1, 1], name
            assert {window["bytes"] for window in counters[name]} == {5 * (16 * 16 + 16) * 8}
        assert [window["buckets"] for window in counters["one"]] == [1, 1, 1]
        assert counters["many"][1]["buckets"] > 1  # rebuilt after the first step
        assert counters["unused"][0]["buckets"] > 1  # several already in the first step
        assert all(window["seconds"] > 0 for window in counters["many"])


def test_counter_tells_broken_loops(lab: list[dict[str, Any]]) -> None:
    counters = lab[0]["counters"]
    assert [window["count"] for window in counters["every"]] == [3, 3, 3]
    assert [window["count"] for window in counters["double"]] == [2, 2, 2]


def test_hook_and_views_keep_every_bit(lab: list[dict[str, Any]]) -> None:
    views = lab[0]["views"]
    assert len(views) == 6
    assert len({norm for norms in views.values() for norm in norms}) == 1


def test_early_branch_is_reduced_too(lab: list[dict[str, Any]]) -> None:
    assert lab[0]["branches"] == lab[1]["branches"]
    assert lab[0]["branches"][0] != 0


def test_breadcrumbs_agree_outside_collectives(lab: list[dict[str, Any]]) -> None:
    assert lab[0]["crumb"] == lab[1]["crumb"]
    assert lab[0]["crumb"][1] is False


def test_changed_arithmetic_starts_no_rank(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    broken = "import trainer.contract.normalisation as n; n.mean_of_means = n.rank_mean = lambda window: 0\n"
    (site / "sitecustomize.py").write_text(broken)
    run = LocalRun.create(tmp_path / "1", "token-parity", environment={"PYTHONPATH": f"{site}:{ROOT}"})
    run.stage("prepare")
    assert run.stage("check-loss", expect=None) == 1
    assert "the worked example is not reproduced" in run.events("check-loss", kind="error")[0]["text"]


def test_training_continues_bit_for_bit(tmp_path: Path) -> None:
    run = LocalRun.create(tmp_path / "1", "token-parity", updates=6, save_every=3)
    run.stage("train")
    whole = _final(run)
    last = run.paths.checkpoints() / "step-0006"
    last.rename(tmp_path / "uninterrupted")
    run.stage("train", attempt=2)
    assert "continues from step-0003" in {event["text"] for event in run.events("train", attempt=2, kind="message")}
    assert [event["step"] for event in run.events("train", attempt=2, kind="metrics")] == [4, 5, 6, 6]
    again = _final(run)
    assert again["training"] == whole["training"]
    assert all(torch.equal(again["model"][name], value) for name, value in whole["model"].items())
    assert whole["training"]["test"]["loss_per_token"] < 1.386
    assert whole["training"]["syncs"] == [[1] * 6] * 2


def _final(run: LocalRun) -> dict[str, Any]:
    shared = torch.load(run.paths.checkpoints() / "step-0006" / "shared.pt", weights_only=True)
    return {"model": shared["model"], "training": json.loads(Handover(run.paths).training.read_text())}
