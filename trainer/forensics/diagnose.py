"""Which mistake explains gradients that are not the objective's own: from measured evidence to a diagnosis."""

from collections.abc import Sequence
from typing import Any

from trainer.contract.diagnosis import Cause, Diagnosis, Weights
from trainer.forensics.between import changed_otherwise
from trainer.forensics.catalogue import KNOWN
from trainer.forensics.evidence import Evidence
from trainer.forensics.examine import Case, examine, unusable
from trainer.forensics.explain import Status
from trainer.forensics.findings import Findings, Named, findings
from trainer.forensics.measures import measured
from trainer.forensics.reasoning import reasoning, ruled_out
from trainer.forensics.separating import separating_change
from trainer.forensics.side_effects import Finding, side_effects
from trainer.forensics.views import expected_weights, own_weights

MORE_CELLS = (
    "Use a model with more parameters than micro-batches, and different samples in every micro-batch, so that the "
    "micro-batches can be distinguished."
)

MORE_STEPS = "Run at least 3 steps, with other samples in every step and a learning rate that changes the parameters."
NO_WEIGHTING = (
    "Look for something that changes the gradient itself: dropout or noise that differs from the reference, weight "
    "decay added to gradients, another loss, or lower precision."
)
CHANGED_INSIDE = (
    "Look at what the code does to .grad between the backward passes of a window: anything but adding up changes what "
    "is already there."
)
DETACHED = "Keep these parameters trainable, and what they compute attached, in every micro-batch."
COMPARE = "Compare the observed weights with what the code divides by, rank by rank and micro-batch by micro-batch."


def diagnose(evidence: Evidence) -> Diagnosis:
    """Return what explains the observed gradients. Raises ValueError if vectors of a parameter differ in size."""
    aside = list(side_effects(evidence))
    problem = unusable(evidence)
    if problem:
        return _nothing_solved(evidence, problem, aside)
    case = examine(evidence)
    found = findings(case)
    causes = [*(_cause(case, named) for named in found.named), *_aside(evidence, aside, found)]
    status = found.status
    if status is Status.CLEAN and causes:
        status = Status.IDENTIFIED
    return Diagnosis(
        status=status.value,
        causes=causes,
        alternatives=_alternatives(found, aside),
        weights=_weights(case),
        residual=case.residual,
        suggestion=_suggestion(case, found, causes),
        reasoning=[*reasoning(case, found), *(finding.words for finding in aside), *evidence.unseen],
        ruled_out=ruled_out(case, found),
    )


def _nothing_solved(evidence: Evidence, problem: str, aside: Sequence[Finding]) -> Diagnosis:
    return Diagnosis(
        status="unexplained",
        causes=_aside(evidence, aside, None),
        weights=None,
        residual=None,
        suggestion="Make every gradient finite and give the window something to learn from, then run again.",
        reasoning=[problem, *(finding.words for finding in aside), *evidence.unseen],
        ruled_out=[],
    )


def _cause(case: Case, named: Named) -> Cause:
    text = KNOWN[named.name].explanation.format(unit=case.evidence.unit)
    windows = named.account.windows
    numbers = measured(named, windows[case.shown] if windows else None, case.evidence.unit)
    return Cause(
        name=named.name,
        explanation=f"{text} {numbers}".strip(),
        parameters=_parameters(named.name, named.numbers),
    )


USED = {
    "local_count_as_global": ("count_of_rank",),
    "short_last_window": ("micro_batches", "divided_by"),
    "repeated_samples": ("rank", "micro_batch"),
    "stale_gradients": ("coefficient",),
    "batch_statistics": ("layers",),
    "auxiliary_loss_weight": ("smallest_ratio", "largest_ratio"),
    "clipped_gradients": ("norm", "smallest_factor", "largest_factor"),
    "clipped_inside_window": ("norm", "times", "smallest_factor", "largest_factor"),
    "scaled_inside_window": ("times", "smallest_factor", "largest_factor"),
    "clipped_before_unscale": ("norm", "smallest_factor", "largest_factor", "loss_scale", "max_norm"),
}
"""Numbers by the mistake they belong to; `steps` and `parameters` belong to all."""


def _parameters(name: str, numbers: dict[str, Any]) -> dict[str, Any]:
    wanted = (*USED.get(name, ()), "steps", "parameters")
    whole = ("count_of_rank", "times", "rank", "micro_batch", "micro_batches", "divided_by")
    return {key: int(numbers[key]) if key in whole else numbers[key] for key in wanted if key in numbers}


def _aside(evidence: Evidence, aside: Sequence[Finding], found: Findings | None) -> list[Cause]:
    known = {named.name for named in found.named} if found is not None else set()
    return [
        Cause(
            name=finding.name,
            explanation=f"{KNOWN[finding.name].explanation.format(unit=evidence.unit)} {finding.words}",
            parameters=finding.numbers,
        )
        for finding in aside
        if finding.name not in known
    ]


def _alternatives(found: Findings, aside: Sequence[Finding]) -> list[list[str]]:
    more = {finding.name for finding in aside}
    return [sorted({*names, *more}) for names in found.alternatives]


def _weights(case: Case) -> Weights | None:
    if case.grouping.odd or not case.grouping.groups:
        return None
    observed = own_weights(case.systems, case.group, case.shown)
    expected = expected_weights(case.systems[case.shown])
    return Weights(observed=[list(row) for row in observed], expected=[list(row) for row in expected])


def _suggestion(case: Case, found: Findings, causes: Sequence[Cause]) -> str:
    if found.status is Status.AMBIGUOUS:
        if case.rivals:
            return MORE_STEPS
        account = next(item for item in case.accounts if item.status is Status.AMBIGUOUS)
        if not account.separable:
            return MORE_CELLS
        return separating_change(found.alternatives, account.windows[case.shown])
    if causes and causes[0].name == "dropped_microbatch" and "parameters" in causes[0].parameters:
        return DETACHED
    if causes:
        return KNOWN[causes[0].name].fix.format(unit=case.evidence.unit)
    return "" if found.status is Status.CLEAN else _where_to_look(case, found)


def _where_to_look(case: Case, found: Findings) -> str:
    if case.grouping.odd:
        return CHANGED_INSIDE if changed_otherwise(case.evidence.steps) else NO_WEIGHTING
    return COMPARE if found.open is None or found.open.separable else MORE_CELLS
