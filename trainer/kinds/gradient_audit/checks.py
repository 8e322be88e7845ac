"""The checks of a gradient audit."""

from collections import Counter
from typing import Final

from trainer.contract.diagnosis import Diagnosis
from trainer.contract.events import encode_number
from trainer.contract.result import Check, Relation
from trainer.forensics.words import listed
from trainer.kinds.gradient_audit.comparison import Comparison
from trainer.kinds.gradient_audit.measured import Measured

UNEQUAL: Final = ("rank_mean", "mean_of_means")
"""Wrong rules that differ from the right one only where counts differ."""
EQUAL: Final = ("missing_world_size",)
MEANING: Final = {
    "rank_mean": "every rank divides by its own count",
    "mean_of_means": "every micro-batch divides by its own count",
    "missing_world_size": "the factor world_size is missing",
}
MOST_NAMES: Final = 5
LOSS_TOLERANCE: Final = 1e-4


def build_checks(found: Measured, diagnosis: Diagnosis) -> list[Check]:
    """Return every check that applies to this target."""
    optional = [sync_count(found), buffers(found), optimizer(found), samples(found), reported_loss(found)]
    return [
        gradient_parity(found, diagnosis),
        ranks_agree(found),
        negative_control(found),
        *(check for check in optional if check is not None),
        *([batch_statistics(found)] if found.batch_statistics else []),
    ]


def gradient_parity(found: Measured, diagnosis: Diagnosis) -> Check:
    """Every component of every rank is within the tolerance, in every step."""
    parity = found.parity
    detail = (
        f"{parity.components} components compared on each of {len(found.reports)} ranks in {found.params.steps} steps; "
        f"{_outside(found)} The number is the error closest to, or furthest outside, its own limit "
        f"{found.params.atol!r} + {found.params.rtol!r} x |reference|, in {parity.worst.name}."
    )
    unused = sorted({name for report in found.reports for step in report["steps"] for name in step["missing"]})
    if unused:
        detail += f" No gradient reached {listed(unused, MOST_NAMES)} on at least one rank; it counts as 0."
    if parity.outside and diagnosis.status == "clean":
        detail += (
            " Repeated in float64 the gradients match: this is rounding. Use dtype=float64, or an absolute tolerance "
            "that fits the size of these gradients."
        )
    return Check(
        name="gradient_parity",
        title="Every rank's gradient is the gradient of the objective",
        passed=parity.outside == 0,
        detail=detail,
        **_numbers(parity),
    )


def ranks_agree(found: Measured) -> Check:
    """All ranks have the same gradient."""
    apart = found.apart
    return Check(
        name="ranks_agree",
        title="All ranks have the same gradient",
        passed=apart.outside == 0,
        detail=(
            f"Each rank's gradient compared with rank 0's, at the same limits; the largest difference is in "
            f"{apart.worst.name}."
        ),
        **_numbers(apart),
    )


def negative_control(found: Measured) -> Check:
    """Wrong rules are rejected by the same comparison on the same windows."""
    rules = EQUAL if found.equal_counts else UNEQUAL
    accepted = [name for name in rules if found.wrong[name].outside == 0]
    agreeing = [name for name in accepted if found.agrees(name)]
    passed: bool | None = None if agreeing else not accepted
    shown = found.wrong[accepted[0] if accepted else rules[0]]
    return Check(
        name="negative_control",
        title="Wrong rules are rejected on the same windows",
        passed=passed,
        relation=Relation.AT_LEAST,
        strict=True,
        measured=encode_number(shown.worst.error),
        limit=encode_number(shown.worst.limit),
        detail=_control_detail(found, rules, accepted, agreeing),
    )


def sync_count(found: Measured) -> Check | None:
    """DDP reduces once per window."""
    if not found.is_ddp:
        return None
    rows = [step for report in found.reports for step in report["steps"]]
    worst = max((len(step["reductions"]) for step in rows), key=lambda count: abs(count - 1))
    early = sum(step["reductions"] == [at] and at < step["backwards"] - 1 for step in rows for at in step["reductions"])
    detail = f"{len(rows)} windows counted on all ranks by the communication hook of DDP."
    if worst != 1:
        places = Counter(str(step["reductions"]) for step in rows).most_common(1)[0][0]
        detail += (
            f" {sum(len(step['reductions']) != 1 for step in rows)} windows differ from 1; they ended with backward "
            f"passes {places}, counted from 0. Forward and backward of every micro-batch but the last belong inside "
            "no_sync(), and the loss must come from the wrapped model."
        )
    elif early:
        detail += f" In {early} windows the only reduction did not end with the last backward pass."
    return Check(
        name="sync_count",
        title="One gradient synchronisation per window, with the last backward pass",
        passed=worst == 1 and not early,
        measured=worst,
        limit=1,
        relation=Relation.EQUAL,
        unit="synchronisations",
        detail=detail,
    )


def buffers(found: Measured) -> Check | None:
    """Buffers move once per micro-batch."""
    report = found.reports[0]
    if not report["buffers"]:
        return None
    names = sorted({move[0] for move in report["moves"]})
    twice = sorted({name for name, _, _, twice, observed in report["moves"] if twice == observed})
    detail = f"{len(report['buffers'])} buffers of rank 0 compared with one forward pass per micro-batch."
    if names:
        detail += f" {listed(names, MOST_NAMES)} moved differently"
        detail += f"; {listed(twice, MOST_NAMES)} as after two forward passes per micro-batch." if twice else "."
    return Check(
        name="buffers",
        title="Buffers move once per micro-batch",
        passed=not names,
        measured=len(names),
        limit=0,
        unit="buffers",
        detail=detail,
    )


def optimizer(found: Measured) -> Check | None:
    """One step of the target's optimizer is that of one process."""
    steps = [report["optimizer"] for report in found.reports]
    if any(step is None for step in steps):
        return None
    worst = max((Comparison.read(step["comparison"]) for step in steps), key=lambda item: item.worst.share)
    return Check(
        name="optimizer_step",
        title="One step of the optimizer moves every rank as it moves one process",
        passed=all(Comparison.read(step["comparison"]).outside == 0 for step in steps),
        detail=(
            f"One step of {steps[0]['name']} with the objective's gradient on {len(steps)} ranks, compared with the "
            f"same optimizer in a group of one process; the largest difference of a step is in {worst.worst.name}."
        ),
        **_numbers(worst),
    )


def samples(found: Measured) -> Check | None:
    """No sample is in a window twice."""
    repeats = [item for step, window in enumerate(found.windows) for item in _repeats(step, window)]
    if not repeats and not found.target.has("sample_ids"):
        return None
    what = "ids" if found.target.has("sample_ids") else "whole micro-batches, by their content"
    return Check(
        name="samples",
        title="No sample is twice in one window",
        passed=not repeats,
        measured=len(repeats),
        limit=0,
        unit="repeated samples",
        detail=f"Compared: {what}. {'; '.join(repeats[:MOST_NAMES])}".strip(),
    )


def _repeats(step: int, window: dict[str, list[list[object]]]) -> list[str]:
    seen: Counter[str] = Counter()
    for rank, row in enumerate(window["ids"]):
        for place, ids in enumerate(row):
            if isinstance(ids, list):
                seen.update(f"id {item}" for item in ids)
            elif window["count"][rank][place]:
                seen[f"the micro-batch with digest {window['digest'][rank][place]}"] += 1
    return [f"step {step}: {name} is there {count} times" for name, count in seen.items() if count > 1]


def reported_loss(found: Measured) -> Check | None:
    """The loss that the code reports is the objective."""
    told = [
        (abs(row["loss"] - known["loss"]) / max(abs(known["loss"]), 1e-12), row["loss"], known["loss"])
        for report in found.reports
        for row, known in zip(report["steps"], found.reference, strict=True)
        if row["loss"] is not None
    ]
    if not told:
        return None
    share, loss, expected = max(told)
    return Check(
        name="reported_loss",
        title="The reported loss is the objective",
        passed=share <= LOSS_TOLERANCE,
        measured=encode_number(share),
        limit=LOSS_TOLERANCE,
        unit="relative error",
        detail=(
            f"`accumulate` returned {loss:.6g} where the objective is {expected:.6g} ({loss / expected:.6g} times). "
            "This is about logging only: the check gradient_parity judges the gradient."
            if expected
            else f"`accumulate` returned {loss:.6g} where the objective is 0."
        ),
    )


def batch_statistics(found: Measured) -> Check:
    """Layers whose output for a sample depends on its micro-batch."""
    accepted = found.target.per_batch_statistics
    return Check(
        name="batch_statistics",
        title="No layer mixes the samples of a micro-batch",
        passed=True if accepted else None,
        detail=(
            f"{listed(found.batch_statistics, MOST_NAMES)} use batch statistics in training mode. "
            "The reference uses the same micro-batches, so a match says nothing about one large batch: "
            "no denominator makes the two equal. "
            + (
                "The target declares that its objective is per micro-batch."
                if accepted
                else "Use GroupNorm or eval mode, or set per_batch_statistics = True if that is the objective."
            )
        ),
    )


def _numbers(worst: Comparison) -> dict[str, object]:
    return {
        "measured": encode_number(worst.worst.error),
        "limit": encode_number(worst.worst.limit),
        "relation": Relation.AT_MOST,
    }


def _outside(found: Measured) -> str:
    if not found.parity.outside:
        return "none is outside."
    rows = [
        f"step {step}, rank {rank}: {item.outside}"
        for step, row in enumerate(found.comparisons)
        for rank, item in enumerate(row)
        if item.outside
    ]
    return f"outside: {listed(rows, MOST_NAMES)}."


def _control_detail(found: Measured, rules: tuple[str, ...], accepted: list[str], agreeing: list[str]) -> str:
    text = "; ".join(
        f"{name} ({MEANING[name]}): {found.wrong[name].outside} of {found.wrong[name].components} components outside"
        for name in rules
    )
    if agreeing:
        return (
            f"{text}. In these windows {' and '.join(agreeing)} and the right rule give the same gradient, so a pass "
            "would prove nothing. Use windows in which the counts of the ranks and of the micro-batches differ."
        )
    if accepted:
        return f"{text}. The tolerance is so wide that {' and '.join(accepted)} would pass: it cannot reject anything."
    if found.equal_counts:
        count = found.counts[0][0][0]
        return (
            f"{text}. Every micro-batch has a count of {count:g}, where means of means are right; it is not "
            "shown that the code weighs unequal micro-batches correctly."
        )
    return f"{text}."
