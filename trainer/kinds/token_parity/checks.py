"""The checks of a token-parity run."""

from collections.abc import Sequence

from trainer.contract.diagnosis import Diagnosis
from trainer.contract.events import encode_number
from trainer.contract.result import Check, Relation
from trainer.kinds.token_parity.comparison import Comparison
from trainer.kinds.token_parity.diagnosis import explain_failure
from trainer.kinds.token_parity.evidence import Evidence
from trainer.kinds.token_parity.handover import EMPTY_RANK, MEAN_OF_MEANS, RANK_MEAN

SIGNED_TOLERANCE = 1e-12


def build_checks(evidence: Evidence, diagnosis: Diagnosis | None = None) -> list[Check]:
    """Return every check; they are independent of each other. A failed gradient parity quotes the diagnosis."""
    return [
        worked_example(evidence),
        gradient_parity(evidence, diagnosis),
        negative_control(evidence),
        empty_window(evidence),
        locally_empty_rank(evidence),
        sync_count(evidence),
        signed_example(evidence),
    ]


def worked_example(evidence: Evidence) -> Check:
    """The code reproduces the hand-computed numbers exactly."""
    lines = evidence.worked_example
    held = sum(line["actual"] == line["expected"] for line in lines)
    return Check(
        name="worked_example",
        title="The worked example is reproduced: mean over tokens 2.5, mean of means 2.0",
        passed=held == len(lines),
        measured=held,
        limit=len(lines),
        relation=Relation.EQUAL,
        unit="statements",
        detail="12 and 36 tokens, loss sums 12 and 108, in exact fractions and without DDP.",
    )


def gradient_parity(evidence: Evidence, diagnosis: Diagnosis | None = None) -> Check:
    """Every component of every rank is within the tolerance."""
    found = evidence.audited
    detail = _spread(found, evidence)
    if found.violations:
        detail += "\n" + explain_failure(evidence, diagnosis)
    return Check(
        name="gradient_parity",
        title="Every rank's gradient equals the single-process gradient",
        passed=found.violations == 0,
        measured=encode_number(found.max_abs_error),
        limit=encode_number(found.limit),
        relation=Relation.AT_MOST,
        unit="",  # a gradient component has none
        detail=detail,
    )


def negative_control(evidence: Evidence) -> Check:
    """Both wrong rules are rejected by the same comparison."""
    rules = {RANK_MEAN: evidence.rank_mean, MEAN_OF_MEANS: evidence.mean_of_means}
    accepted = [name for name, found in rules.items() if found.violations == 0]
    agreeing = [name for name in accepted if evidence.rules_agree(name)]
    passed: bool | None = not accepted
    if agreeing:
        passed = None
    found = evidence.rank_mean
    # The error that rejects the rule: the largest error may be within its own limit where the reference is large.
    measured, limit = (
        (found.outside.error, found.outside.limit) if found.outside else (found.max_abs_error, found.limit)
    )
    return Check(
        name="negative_control",
        title="The wrong rules are rejected",
        passed=passed,
        measured=encode_number(measured),
        limit=encode_number(limit),
        relation=Relation.AT_LEAST,
        strict=True,
        unit="",  # a gradient component has none
        detail=_control_detail(evidence, rules, accepted, agreeing),
    )


def empty_window(evidence: Evidence) -> Check:
    """A window without any target is rejected by all ranks together."""
    outcomes = [report["empty_window"] for report in evidence.reports]
    refused = sum(outcome["error"] == "EmptyWindowError" for outcome in outcomes)
    same = len({outcome["text"] for outcome in outcomes}) == 1
    together = all(outcome["errors"] == outcomes[0]["errors"] for outcome in outcomes)
    return Check(
        name="empty_window",
        title="A window without supervised tokens is rejected by all ranks together",
        passed=refused == len(outcomes) and same and together and not any(outcome["syncs"] for outcome in outcomes),
        measured=refused,
        limit=len(outcomes),
        relation=Relation.EQUAL,
        unit="ranks",
        detail=str(outcomes[0]["text"]),
    )


def locally_empty_rank(evidence: Evidence) -> Check:
    """A rank without targets takes part, and the gradient is still correct on every rank."""
    found = evidence.locally_empty
    return Check(
        name="locally_empty_rank",
        title=f"Rank {EMPTY_RANK} without supervised tokens: every rank still has the correct gradient",
        passed=found.violations == 0,
        measured=encode_number(found.max_abs_error),
        limit=encode_number(found.limit),
        relation=Relation.AT_MOST,
        unit="",  # a gradient component has none
        detail=_spread(found, evidence),
    )


def sync_count(evidence: Evidence) -> Check:
    """One gradient synchronisation per window, in the audit and in training."""
    counts = [window["syncs"] for report in evidence.reports for window in report["windows"].values()]
    if evidence.training is not None:
        counts += [count for row in evidence.training["syncs"] for count in row]
    worst = max(counts, key=lambda count: abs(count - 1))
    audited = evidence.reports[0]["windows"]["audited"]
    detail = (
        f"{len(counts)} windows counted on all ranks by the communication hook; a synchronisation is one "
        f"completed reduction of the whole model (audited window: {audited['bytes']} bytes, "
        f"buckets: {audited['buckets']})."
    )
    if worst != 1:
        detail += (
            f" {sum(count != 1 for count in counts)} windows differ from 1: the forward pass may be outside "
            "`no_sync()`, the last micro-batch inside it, or every micro-batch may be synchronised by mistake."
        )
    return Check(
        name="sync_count",
        title="One gradient synchronisation per window",
        passed=worst == 1,
        measured=worst,
        limit=1,
        relation=Relation.EQUAL,
        unit="synchronisations",
        detail=detail,
    )


def signed_example(evidence: Evidence) -> Check:
    """Equal losses, different gradients, measured with real DDP."""
    found = [report["signed"] for report in evidence.reports if report["signed"] is not None]
    wanted = {"correct": (1.0, 1.0), "rank_mean": (1.0, 0.0)}
    errors = [
        max(abs(signed[rule]["loss"] - loss), abs(signed[rule]["gradient"] - gradient))
        for signed in found
        for rule, (loss, gradient) in wanted.items()
    ]
    return Check(
        name="same_loss_different_gradient",
        title="Both rules report loss 1, but gradients 1 and 0",
        passed=all(error <= SIGNED_TOLERANCE for error in errors),
        measured=encode_number(max(errors)),
        limit=SIGNED_TOLERANCE,
        relation=Relation.AT_MOST,
        unit="largest error",
        detail="One parameter at 0, 12 targets +1 on rank 0 and 36 targets -1 on rank 1, squared error, with DDP.",
    )


def _spread(found: Comparison, evidence: Evidence) -> str:
    return (
        f"{found.components} components compared on each of {len(evidence.reports)} ranks, "
        f"{found.violations} outside |g - ref| <= {evidence.params.atol!r} + {evidence.params.rtol!r} x |ref| "
        f"on at least one rank; largest error in {found.worst}."
    )


def _control_detail(
    evidence: Evidence, rules: dict[str, Comparison], accepted: Sequence[str], agreeing: Sequence[str]
) -> str:
    text = "; ".join(
        f"{name}: largest error {found.max_abs_error:.3g}, {found.violations} of {found.components} outside"
        for name, found in rules.items()
    )
    if agreeing:
        counts = [sum(row) for row in evidence.plan["token_counts"]]
        return (
            f"{text}. On this window {' and '.join(agreeing)} and the correct rule give the same gradient "
            f"(tokens per rank {counts}), so a pass would prove nothing and the verdict is inconclusive. "
            "Use unequal counts to distinguish the rules."
        )
    if accepted:
        return f"{text}. The tolerance is so wide that {' and '.join(accepted)} passes: it cannot reject anything."
    return f"{text}."
