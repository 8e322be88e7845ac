"""Stage `compare`: read the output of the ranks, evaluate the checks, write `result.json`."""

from typing import Any

import torch

from trainer.common.context import StageContext
from trainer.common.process import announce
from trainer.common.rank_devices import environment
from trainer.contract.events import encode_number
from trainer.contract.nodes import network_limits, nodes_of
from trainer.contract.placement import not_validated
from trainer.contract.result import Result, headline_of, verdict_of
from trainer.contract.weights import WEIGHTS_TITLE, weights_panel
from trainer.kinds.token_parity.checks import build_checks
from trainer.kinds.token_parity.evidence import Evidence
from trainer.kinds.token_parity.forensics import diagnosis
from trainer.kinds.token_parity.panels import ERRORS_TITLE, EXPLAINS, build_panels

LIMITS = [
    "One small model with plain SGD: other models, batch statistics and other optimizers are not covered.",
    "The sequences are generated: real data is not covered.",
    "Speed is not measured.",
    "Token loss and token accuracy say nothing about model quality.",
    "A match within the tolerance does not prove bit-for-bit equality.",
]


def run(context: StageContext) -> None:
    """Compare and write the verdict."""
    announce(context.telemetry)
    torch.set_num_threads(1)
    context.telemetry.phase("compare", 0)
    evidence = Evidence.load(context)
    found = diagnosis(evidence)
    checks = build_checks(evidence, found)
    weights = weights_panel(found, unit="token")
    wrong = weights is not None and found.status != "clean"
    panels = build_panels(evidence)
    if weights is not None:
        panels.insert(0 if wrong else len(panels), weights)
    result = Result(
        kind=context.kind.name,
        verdict=verdict_of(checks),
        environment=environment(
            context.config,
            evidence.reports,
            precision="fp32",
            data_source=f"generated sequences, seed {context.params.seed}",
        ),
        params=context.params.model_dump(mode="json"),
        summary=summary(evidence),
        limits=limits(context),
        checks=checks,
        panels=panels,
        headline=WEIGHTS_TITLE if wrong else headline_of(checks, EXPLAINS, ERRORS_TITLE),
        diagnosis=found,
    )
    result.save(context.paths.result)
    context.telemetry.message(f"verdict {result.verdict}")
    context.telemetry.progress(len(checks), len(checks), "checks")


def summary(evidence: Evidence) -> dict[str, Any]:
    """Return the figures shown in tables of runs."""
    found, wrong, means = evidence.audited, evidence.rank_mean, evidence.mean_of_means
    training = evidence.training
    return {
        "components": found.components,
        "max_abs_error": encode_number(found.max_abs_error),
        "violations": found.violations,
        "wrong_max_abs_error": encode_number(wrong.max_abs_error),
        "wrong_violations": wrong.violations,
        "mean_of_means_max_abs_error": encode_number(means.max_abs_error),
        "mean_of_means_violations": means.violations,
        "token_counts": evidence.plan["token_counts"],
        "global_tokens": evidence.plan["global_tokens"],
        "data_lock": evidence.plan["data_lock"],
        **(
            {}
            if training is None
            else {
                "test_loss_per_token": encode_number(training["test"]["loss_per_token"]),
                "token_accuracy": training["test"]["token_accuracy"],
                "test_tokens": training["test"]["tokens"],
            }
        ),
    }


def limits(context: StageContext) -> list[str]:
    """Return what the result does not show, including limits that depend on the devices used."""
    devices = not_validated(context.config.device, context.config.backend)
    found = [*LIMITS, *network_limits(nodes_of(context.paths)), *devices]
    if context.params.updates == 1:
        found.append("One window was audited and nothing was trained.")
    return found
