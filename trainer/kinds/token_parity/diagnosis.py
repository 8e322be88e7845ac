"""Why a gradient does not match, in the words of the check: the diagnosis, and what else this run measured."""

from collections.abc import Iterator

from trainer.contract.diagnosis import Diagnosis
from trainer.kinds.token_parity.evidence import Evidence
from trainer.kinds.token_parity.handover import AUDITED


def explain_failure(evidence: Evidence, diagnosis: Diagnosis | None) -> str:
    """Return the diagnosis, and then one line per fact that another cause would show in."""
    points = [
        f"global count: {_counts(evidence)}",
        f"`no_sync` around forward and backward: {_syncs(evidence)}",
        f"initial state: {_initial_state(evidence)}",
        f"data: {_data(evidence)}",
    ]
    lines = list(_words(diagnosis)) if diagnosis is not None else []
    return "\n".join([*lines, *(f"({place}) {point}." for place, point in enumerate(points, start=1))])


def _words(diagnosis: Diagnosis) -> Iterator[str]:
    names = " with ".join(cause.name for cause in diagnosis.causes)
    yield f"Diagnosis: {diagnosis.status}{f', {names}' if names else ''}."
    yield from (cause.explanation for cause in diagnosis.causes)
    if not diagnosis.causes:
        yield from diagnosis.reasoning[-1:]
    if diagnosis.suggestion:
        yield f"Suggestion: {diagnosis.suggestion}"


def _counts(evidence: Evidence) -> str:
    windows = [report["windows"][AUDITED] for report in evidence.reports]
    total = sum(sum(window["tokens"]) for window in windows)
    used = sorted({window["global_tokens"] for window in windows})
    planned = evidence.plan["global_tokens"]
    verdict = "they agree" if used == [total] == [planned] else "they differ"
    return f"used {used}, ranks' own counts add up to {total}, planned {planned}: {verdict}"


def _syncs(evidence: Evidence) -> str:
    counts = [report["windows"][AUDITED]["syncs"] for report in evidence.reports]
    return f"synchronisations per rank in this window {counts}, expected 1"


def _initial_state(evidence: Evidence) -> str:
    odd = [report["rank"] for report in evidence.reports if report["weights"] != evidence.reference["weights"]]
    return f"ranks {odd} started from different weights than the reference" if odd else "same weights on every rank"


def _data(evidence: Evidence) -> str:
    odd = [report["rank"] for report in evidence.reports if report["data_lock"] != evidence.plan["data_lock"]]
    return f"ranks {odd} have different data than planned" if odd else "same data lock on every rank"
