"""Likely causes of a gradient mismatch, in a fixed order, each with what this run measured."""

import math

from trainer.kinds.token_parity.comparison import Comparison
from trainer.kinds.token_parity.evidence import Evidence
from trainer.kinds.token_parity.handover import AUDITED


def explain_failure(evidence: Evidence) -> str:
    """Return the ordered list of suspects, one per line, with the evidence for or against each."""
    points = [
        f"global count: {_counts(evidence)}",
        f"sum or mean: {_direction(evidence)}",
        f"`no_sync` around forward and backward: {_syncs(evidence)}",
        f"extra divisions: {_ratio(evidence)}",
        f"initial state: {_initial_state(evidence)}",
        f"data: {_data(evidence)}",
    ]
    return "\n".join(["Check in this order:", *(f"({place}) {point}." for place, point in enumerate(points, start=1))])


def _counts(evidence: Evidence) -> str:
    windows = [report["windows"][AUDITED] for report in evidence.reports]
    total = sum(sum(window["tokens"]) for window in windows)
    used = sorted({window["global_tokens"] for window in windows})
    planned = evidence.plan["global_tokens"]
    verdict = "they agree" if used == [total] == [planned] else "they differ"
    return f"used {used}, ranks' own counts add up to {total}, planned {planned}: {verdict}"


def _direction(evidence: Evidence) -> str:
    cosines = evidence.audited.cosines
    lowest = math.nan if any(math.isnan(value) for value in cosines) else min(cosines)
    if lowest > 1 - 1e-9:
        return "every rank's gradient has the direction of the reference, so token weights are right; a factor is wrong"
    return f"the direction differs (lowest cosine {lowest:.9f}), so tokens have unequal weights, as in a mean of means"


def _syncs(evidence: Evidence) -> str:
    counts = [report["windows"][AUDITED]["syncs"] for report in evidence.reports]
    return f"synchronisations per rank in this window {counts}, expected 1"


def _ratio(evidence: Evidence) -> str:
    found = evidence.audited
    text = f"gradient / reference is {_range(found.ratios)}"
    names = [
        name
        for name, factor in _factors(evidence).items()
        if all(math.isclose(ratio, factor, rel_tol=1e-5) for ratio in found.ratios)
    ]
    if not names or not _parallel(found):
        return f"{text}, not one of the known factors"
    hint = " (the world size equals the number of micro-batches here: use a different size to distinguish them)"
    return f"{text}: {' or '.join(names)}{hint if len(names) > 1 else ''}"


def _factors(evidence: Evidence) -> dict[str, float]:
    ranks, steps = evidence.params.world_size, evidence.params.accumulation
    factors = {
        "the factor world_size is missing": 1 / ranks,
        "world_size is applied twice, or a hook does not divide": float(ranks),
        "divided by the number of micro-batches again": 1 / steps,
        "world_size is missing, and divided by the number of micro-batches": 1 / (ranks * steps),
    }
    return {name: factor for name, factor in factors.items() if factor != 1}


def _parallel(found: Comparison) -> bool:
    return all(cosine > 1 - 1e-9 for cosine in found.cosines)


def _initial_state(evidence: Evidence) -> str:
    odd = [report["rank"] for report in evidence.reports if report["weights"] != evidence.reference["weights"]]
    return f"ranks {odd} started from different weights than the reference" if odd else "same weights on every rank"


def _data(evidence: Evidence) -> str:
    odd = [report["rank"] for report in evidence.reports if report["data_lock"] != evidence.plan["data_lock"]]
    return f"ranks {odd} have different data than planned" if odd else "same data lock on every rank"


def _range(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.6g}" if math.isclose(low, high, rel_tol=1e-6) else f"{low:.6g} to {high:.6g} across ranks"
