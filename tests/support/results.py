"""Results with a panel of every type, for tests of everything that shows them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.runs.results.reading import read_file
from trainer.contract.result import (
    BarGroup,
    BarsPanel,
    Check,
    ConfusionPanel,
    Environment,
    HeatPanel,
    HistogramGroup,
    HistogramPanel,
    ImageItem,
    ImagesPanel,
    Line,
    Panel,
    Relation,
    Result,
    SeriesPanel,
    TablePanel,
    TimelineLane,
    TimelinePanel,
    TimelineSpan,
    verdict_of,
)

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
LIMITS = ["Other models, data or optimizers.", "Several nodes.", "Speed."]
ENVIRONMENT = Environment(
    device="cpu",
    backend="gloo",
    world_size=2,
    threads=1,
    precision="fp32",
    versions={"python": "3.11", "torch": "2.14"},
    cpu="test processor",
    gpus=[],
    data_source="generated from the seed",
)


def saved_result(path: Path) -> Result:
    """Return a run's checked `result.json`."""
    found = read_file(path)
    assert found.result is not None, found.problem
    return found.result


def matrix(weight: int = 90) -> list[list[int]]:
    """Return a ten-class matrix whose rows sum to 100, `weight` of them on the diagonal."""
    spare = 100 - weight
    rows = [[0] * 10 for _ in range(10)]
    for index in range(10):
        rows[index][index] = weight
        rows[index][(index + 1) % 10] = spare // 2
        rows[index][(index + 3) % 10] += spare - spare // 2
    return rows


def every_panel() -> list[Panel]:
    """Return one panel of each type, with gaps and non-finite numbers where a type allows them."""
    steps = list(range(40))
    falling = [1.4 - 0.02 * step for step in steps]
    broken: list[Any] = [*falling[:20], "NaN", None, *falling[22:]]
    edges = [0.0, *(10.0**power for power in range(-12, 1))]
    return [
        TablePanel(
            title="Error per tensor", columns=["tensor", "largest", "outside"], rows=[["head.weight", 2.9e-8, 0]]
        ),
        HistogramPanel(
            title="Absolute errors",
            edges=list(edges),
            log_x=True,
            x_label="absolute error",
            groups=[
                HistogramGroup(name="correct rule", counts=[900, 0, 10, 400, 3000, 278000, 300, 0, 0, 0, 0, 0, 0]),
                HistogramGroup(name="negative control", counts=[0, 0, 0, 0, 0, 20, 300, 9000, 270000, 3000, 30, 0, 0]),
            ],
        ),
        SeriesPanel(
            title="Loss",
            x=list(steps),
            x_label="step",
            y_label="loss per token",
            lines=[Line(name="train", y=list(falling)), Line(name="validation", y=broken)],
        ),
        BarsPanel(
            title="Tokens",
            unit="tokens",
            labels=["rank 0", "rank 1"],
            groups=[
                BarGroup(name="micro-batch 0", values=[310, 790]),
                BarGroup(name="micro-batch 1", values=[290, 812]),
            ],
        ),
        HeatPanel(
            title="Synchronisations",
            rows=["rank 0", "rank 1"],
            columns=["update 1", "update 2"],
            values=[[1, 1], [1, 2]],
            expected=[[1, 1], [1, 1]],
        ),
        ConfusionPanel(title="Confusions, no_sync", labels=CLASSES, counts=matrix(), mode="no_sync"),
        ImagesPanel(
            title="Most frequent confusions",
            items=[ImageItem(path="no_sync/sample.png", caption="cat, predicted as dog")],
        ),
        timeline_panel(),
    ]


def timeline_panel() -> TimelinePanel:
    """Return the first window of two ranks, with an end before its begin is known."""
    return TimelinePanel(
        title="First windows",
        lanes=[
            TimelineLane(
                name=f"rank {rank}",
                spans=[
                    TimelineSpan(kind="forward", begin=0.0, end=4.0 + rank, label="micro-batch 1"),
                    TimelineSpan(kind="backward", begin=5.0, end=12.0),
                    TimelineSpan(kind="sync", begin=9.0, end=11.5),
                    TimelineSpan(kind="step", begin=12.0, end=13.0),
                    TimelineSpan(kind="step", begin="NaN", end=13.0),
                ],
            )
            for rank in range(2)
        ],
    )


def make_result(kind: str = "token-parity", *, error: float = 2.98e-8, panels: Sequence[Panel] = ()) -> Result:
    """Return a valid result; an `error` above 1e-6 makes it fail."""
    checks = [
        Check(
            name="worked_example",
            title="Worked example in exact fractions",
            passed=True,
            measured=18,
            limit=18,
            relation=Relation.EQUAL,
            unit="statements",
        ),
        Check(
            name="gradient_parity",
            title="Gradient parity of all components on every rank",
            passed=error <= 1e-6,
            measured=error,
            limit=1e-6,
            relation=Relation.AT_MOST,
            detail="282,628 components compared on each of 2 ranks.",
        ),
        Check(
            name="negative_control",
            title="Mean of rank means is rejected",
            passed=True,
            measured=0.0235,
            limit=1e-6,
            relation=Relation.AT_LEAST,
            strict=True,
        ),
    ]
    summary = {"components": 282_628, "max_abs_error": error, "token_counts": [[310, 290], [790, 812]]}
    return Result(
        kind=kind,
        verdict=verdict_of(checks),
        environment=ENVIRONMENT,
        params={"world_size": 2},
        summary=summary
        if kind == "token-parity"
        else {"modes": {"no_sync": {"optimizer_steps": 12, "test_accuracy": 0.91}}},
        limits=LIMITS,
        checks=checks,
        panels=list(panels),
    )
