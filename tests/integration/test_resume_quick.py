"""The whole audit with two ranks: every stage in its own processes, then the result."""

import math

import pytest

from tests.support.stages import LocalRun
from trainer.contract.result import Result, SeriesPanel, TablePanel, Verdict
from trainer.kinds.resume.panels import DISTANCE_TITLE

pytestmark = pytest.mark.torchrun
CHECKS = [
    *("parameters", "optimizer", "rng", "sampler", "losses", "control", "rng_not_restored_detected"),
    *("sampler_restart_detected", "optimizer_not_restored_detected", "checkpoints_valid"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> LocalRun:
    run = LocalRun.create(tmp_path_factory.mktemp("quick") / "1", "resume", "quick")
    run.all_stages()
    return run


@pytest.fixture(scope="module")
def result(run: LocalRun) -> Result:
    return run.result()


def test_quick_audit_passes(result: Result) -> None:
    assert result.verdict is Verdict.PASS
    assert [check.name for check in result.checks] == CHECKS
    assert [check.measured for check in result.checks if not check.name.endswith("_detected")] == [0] * 7
    for check in result.checks:
        if check.name.endswith("_detected"):
            assert isinstance(check.measured, float)
            assert check.measured > 1e-6


def test_summary_has_its_figures(result: Result) -> None:
    summary = result.summary
    assert (summary["max_abs_difference"], summary["stop_step"], summary["updates"]) == (0, 10, 20)
    assert (summary["kills"], summary["diagnosis"]) == ([], None)
    assert summary["test_tokens"] > 256 * 16
    assert summary["test_loss_per_token"] < math.log(4)
    assert 0.25 < summary["token_accuracy"] < 1


def test_panels_show_the_evidence(result: Result) -> None:
    assert result.headline == DISTANCE_TITLE
    (curves,) = [panel for panel in result.panels if isinstance(panel, SeriesPanel)]
    lines = {line.name: line.y for line in curves.lines}
    assert lines["continuous"] == lines["interrupted, then resumed after 10"] == lines["control"]
    for name in ("twin-rng", "twin-sampler", "twin-optimizer"):
        assert lines[name][:10] == lines["continuous"][:10]
        assert lines[name][10:] != lines["continuous"][10:]
    tables = {panel.title: panel for panel in result.panels if isinstance(panel, TablePanel)}
    assert len(tables["Largest difference per parameter tensor"].rows) == 28
    assert [row[2] for row in tables["Largest difference per optimizer state"].rows] == [0] * 44
    assert {row[4] for row in tables["Checkpoints"].rows} == {"yes"}


def test_every_trajectory_ran_in_new_processes(run: LocalRun) -> None:
    ranked = [stage.name for stage in run.plan if stage.launcher == "torchrun"]
    assert len(ranked) == 7
    pids = {run.events(stage, rank, kind="start")[0]["pid"] for stage in ranked for rank in range(2)}
    assert len(pids) == 14


def test_one_synchronisation_per_update(run: LocalRun) -> None:
    for rank in range(2):
        syncs = run.events("continuous", rank, kind="sync")
        assert [event["step"] for event in syncs] == list(range(1, 21))
        assert {event["count"] for event in syncs} == {1}
