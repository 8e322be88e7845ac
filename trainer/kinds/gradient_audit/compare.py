"""Stage `compare`: read what the ranks measured, evaluate the checks, name the mistake, write `result.json`."""

from typing import Any

import torch

from trainer.common.context import StageContext
from trainer.common.process import announce
from trainer.common.rank_devices import environment
from trainer.contract.diagnosis import Diagnosis
from trainer.contract.events import encode_number
from trainer.contract.nodes import network_limits, nodes_of
from trainer.contract.placement import not_validated
from trainer.contract.result import Result, headline_of, verdict_of
from trainer.contract.weights import WEIGHTS_TITLE
from trainer.kinds.gradient_audit.checks import build_checks
from trainer.kinds.gradient_audit.explanation import explain
from trainer.kinds.gradient_audit.measured import Measured
from trainer.kinds.gradient_audit.panels import ERRORS_TITLE, build_panels

LIMITS = [
    "These windows only: other batches, later training and other parameters are not covered.",
    "The objective is what loss_sum and count say; whether that is the right objective is not judged.",
    "What the loop does with the gradient is not covered: clipping, schedule, an optimizer the target does not give.",
    "A match within the tolerance does not prove bit-for-bit equality.",
    "Speed is not measured.",
]


def run(context: StageContext) -> None:
    """Compare and write the verdict."""
    announce(context.telemetry)
    torch.set_num_threads(1)
    context.telemetry.phase("compare", 0)
    write_result(context, Measured.load(context))


def write_result(context: StageContext, found: Measured) -> None:
    """Evaluate the checks and write the result."""
    diagnosis = explain(found)
    checks = build_checks(found, diagnosis)
    panels = build_panels(found, diagnosis)
    wrong = diagnosis.status != "clean" and any(panel.title == WEIGHTS_TITLE for panel in panels)
    result = Result(
        kind=context.kind.name,
        verdict=verdict_of(checks),
        environment=environment(
            context.config,
            found.reports,
            precision={"float32": "fp32", "float64": "fp64"}[context.params.dtype],
            data_source=f"target {found.target.name}",
        ),
        params=context.params.model_dump(mode="json"),
        summary=summary(found, diagnosis),
        limits=limits(context, found),
        checks=checks,
        panels=panels,
        headline=headline_of(checks, {}, WEIGHTS_TITLE if wrong else ERRORS_TITLE),
        diagnosis=diagnosis,
    )
    result.save(context.paths.result)
    context.telemetry.message(f"verdict {result.verdict}")
    context.telemetry.progress(len(checks), len(checks), "checks")


def summary(found: Measured, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the figures shown in tables of runs."""
    return {
        "target": found.target.name,
        "unit": found.target.unit,
        "components": found.parity.components,
        "max_abs_error": encode_number(found.parity.max_abs_error),
        "violations": found.parity.outside,
        "counts": found.counts,
        "global_counts": [sum(map(sum, rows)) for rows in found.counts],
        "losses": [encode_number(item["loss"]) for item in found.reference],
        "engine": found.reports[0]["engine"],
        "reductions": [[step["reductions"] for step in report["steps"]] for report in found.reports],
        "backwards": [[step["backwards"] for step in report["steps"]] for report in found.reports],
        "diagnosis": diagnosis.status,
        "causes": [cause.name for cause in diagnosis.causes],
    }


def limits(context: StageContext, found: Measured) -> list[str]:
    """Return what the result does not show."""
    unit = f"The unit of weight is the {found.target.unit}: each one counts as much as the target's count says."
    devices = not_validated(context.config.device, context.config.backend)
    more = [unit, *LIMITS, *network_limits(nodes_of(context.paths)), *devices]
    if found.equal_counts:
        more.append(
            "Every micro-batch has the same count, where rules that divide by local counts are right, too. It is "
            "not shown that the code is right for unequal counts, such as a last, incomplete batch."
        )
    if not found.is_ddp:
        more.append("Gradients are not reduced by DDP: synchronisations are neither counted nor judged.")
    if found.params.steps == 1:
        more.append("Only one window: gradients left over from the window before would not be seen.")
    return more
