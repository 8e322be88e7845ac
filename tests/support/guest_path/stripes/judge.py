"""Stage `judge`: checks and a chart from the files of the ranks."""

import json
from pathlib import Path
from typing import Any

from trainer.common.context import StageContext
from trainer.common.process import announce, versions
from trainer.contract.result import Check, Environment, Line, Relation, Result, SeriesPanel, TablePanel, verdict_of


def run(context: StageContext) -> None:
    """Write the result."""
    announce(context.telemetry)
    history = load(context.paths.artifacts)
    checks = judged(history)
    result = Result(
        kind=context.kind.name,
        verdict=verdict_of(checks),
        environment=Environment(
            device="cpu",
            backend=context.config.backend,
            world_size=context.params.world_size,
            threads=1,
            precision="fp32",
            versions=versions(),
            cpu="",
            gpus=[],
            data_source=context.params.data,
        ),
        params=context.params.model_dump(mode="json"),
        summary={"last_loss": history["losses"][-1]},
        limits=["Stripes only."],
        checks=checks,
        panels=[chart(history["losses"]), TablePanel(title="Digests", columns=["rank", "digest"], rows=rows(history))],
        headline="Digests",
    )
    result.save(context.paths.result)


def load(artifacts: Path) -> dict[str, Any]:
    """Return the history of a run."""
    found: dict[str, Any] = json.loads((artifacts / "fit" / "history.json").read_text())
    return found


def judged(history: dict[str, Any]) -> list[Check]:
    """Return the checks that follow from a history."""
    others = len(set(history["digests"])) - 1
    last = history["losses"][-1]
    return [
        Check(
            name="last_loss",
            title="The last loss is small",
            passed=last <= 0.5,
            measured=last,
            limit=0.5,
            relation=Relation.AT_MOST,
        ),
        Check(
            name="same_weights",
            title="All ranks agree",
            passed=others == 0,
            measured=others,
            limit=0,
            relation=Relation.EQUAL,
            unit="other weights",
        ),
    ]


def chart(losses: list[float]) -> SeriesPanel:
    """Return the curve of the losses."""
    steps: list[float | int | None] = [*range(1, len(losses) + 1)]
    return SeriesPanel(
        title="Loss of the stripes", x=list(steps), x_label="step", lines=[Line(name="loss", y=list(losses))]
    )


def rows(history: dict[str, Any]) -> list[list[Any]]:
    """Return the digest of every rank."""
    return [[rank, digest[:12]] for rank, digest in enumerate(history["digests"])]
