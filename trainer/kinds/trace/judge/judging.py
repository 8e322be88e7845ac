"""From the records of traced ranks to the result: checks, findings, panels and summary. Pure, without torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.contract.events import encodable
from trainer.contract.nodes import network_limits
from trainer.contract.result import Environment, Panel, Result, verdict_of
from trainer.kinds.trace.judge import (
    agreement,
    coverage,
    expectations,
    loss_scale,
    panels,
    samples,
    schedules,
    streams,
    symmetry,
    synchronisations,
    timeline,
    token_weights,
    writes,
)
from trainer.kinds.trace.judge.catalogue import SEVERITIES
from trainer.kinds.trace.judge.findings import Finding, Judged, Policy
from trainer.kinds.trace.judge.reading import read
from trainer.kinds.trace.judge.runs import Run
from trainer.kinds.trace.judge.summary import windows
from trainer.kinds.trace.judge.verdicts import Understanding, understand
from trainer.kinds.trace.judge.weighing import Weigher
from trainer.kinds.trace.params import TraceParams

LIMITS = [
    "Windows that were not looked at are judged by their number of micro-batches and reductions alone.",
    "Losses in compiled or fused code, and losses that the script computes itself, are not seen.",
    "The engine is assumed to average gradients over the ranks, as it documents; gradient-audit measures it.",
    "Equal digests of gradients and parameters are compared at a few steps, not at every one.",
    "Speed is not judged, and neither is whether the model learns.",
]
MOST_OPTIMIZERS = 32
"""Whose windows are weighed: those with the most steps."""
Understood = Sequence[tuple[int, Understanding]]


def judge(folder: Path, params: TraceParams, exit_code: int | None = None) -> Result:
    """Judge what the ranks wrote into `folder`; `exit_code` is that of the command, None while it is not known."""
    run = Run(read(folder), exit_code)
    numbers = sorted(run.steps, key=run.steps_done, reverse=True)[:MOST_OPTIMIZERS]
    understood = [
        (number, item) for number in sorted(numbers) for item in understand(Weigher(run, number, params.unit))
    ]
    judged = _judge(run, understood, params.unit)
    judged.append(coverage.judge(run, judged))
    policy = Policy(fail_on=params.fail_on, allow=frozenset(params.allow))
    found = sorted((item for one in judged for item in one.findings), key=lambda item: SEVERITIES.index(item.severity))
    checks = [item.check(policy) for item in judged if not item.absent] + expectations.checks(
        run, params.expect, understood
    )
    seen = coverage.document(run, judged)
    pictures = [panels.heat(understood, params.unit), timeline.panel(run)]
    tables = [panels.findings_table(found, policy.allow), panels.seen_table(seen, seen["not_seen"])]
    shown: list[Panel] = [*(picture for picture in pictures if picture is not None), *tables]
    return Result(
        kind="trace",
        verdict=verdict_of(checks),
        environment=_environment(run),
        params={**params.model_dump(mode="json"), "world_size": max(1, run.world_size)},
        summary=_summary(run, found, understood, seen, policy),
        limits=[*LIMITS, *network_limits(rank.node for rank in run.trace.ranks), *seen["not_seen"]],
        checks=checks,
        panels=shown,
        headline=shown[0].title,
    )


def _judge(run: Run, understood: Understood, unit: str) -> list[Judged]:
    if not run.trace.ranks:
        return []
    return [
        synchronisations.judge(run),
        token_weights.judge(run, understood, unit),
        loss_scale.judge(run, understood),
        agreement.gradients(run),
        agreement.parameters(run),
        agreement.buffers(run),
        samples.judge(run),
        symmetry.judge(run),
        schedules.judge(run),
        streams.judge(run),
        writes.judge(run),
    ]


def _summary(
    run: Run, found: Sequence[Finding], understood: Understood, seen: dict[str, Any], policy: Policy
) -> dict[str, Any]:
    summary: dict[str, Any] = encodable(
        {
            "findings": [item.document(policy.allow) for item in found],
            "windows": windows(run, understood),
            "coverage": seen,
            "exit_code": run.exit_code,
            "engine": run.engine,
            "world_size": run.world_size,
        }
    )
    return summary


def _environment(run: Run) -> Environment:
    first = run.first
    about = first.about if first else None
    device = first.device if first else ""
    return Environment(
        device="cuda" if device.startswith("cuda") else "cpu",
        backend=about.backend if about else "none",
        world_size=run.world_size,
        threads=0,
        precision="as the script sets it",
        versions=dict(about.versions) if about else {},
        cpu="not recorded",
        gpus=[f"rank {rank.rank}: {rank.device}" for rank in run.trace.ranks if rank.device.startswith("cuda")][:64],
        data_source="the script's own",
    )
