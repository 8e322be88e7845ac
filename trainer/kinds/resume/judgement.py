"""The comparison of all trajectories of a run, and the checks that follow from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.contract.checkpoints import CheckpointInfo
from trainer.contract.events import encode_number
from trainer.contract.result import Check, Relation
from trainer.kinds.resume.diagnosis import OPTIMIZER, PER_RANK_RNG, PLAN_POSITION, Cause, diagnose
from trainer.kinds.resume.differences import Comparison, Difference, compare, largest
from trainer.kinds.resume.evidence import Evidence
from trainer.kinds.resume.kills import Recovery
from trainer.kinds.resume.params import OPTIMIZER_FAULT, RNG_FAULT, SAMPLER_FAULT, TWIN_TITLES

EXPECTED_CAUSE = {RNG_FAULT: PER_RANK_RNG, SAMPLER_FAULT: PLAN_POSITION, OPTIMIZER_FAULT: OPTIMIZER}
NO_CAUSE = Cause(name="", text="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """All findings about a run."""

    reference: Evidence
    resumed: Comparison
    control: Comparison
    twins: Mapping[str, Comparison]
    """By fault."""
    cause: Cause | None
    """Why the resumed trajectory ended in a different state; None if it did not."""
    twin_causes: Mapping[str, Cause]
    """Why each wrong resume ended in a different state; an empty cause if it did not."""
    checkpoints: Mapping[str, Sequence[CheckpointInfo]]
    """By trajectory."""
    kills: Sequence[Recovery] | None
    """None if the run has no planned kills."""
    kills_planned: int

    @property
    def max_abs_difference(self) -> float:
        """Largest difference of parameters, optimizer and losses between uninterrupted and resumed."""
        return largest({**self.resumed.parameters, **self.resumed.optimizer, "losses": self.resumed.losses})


def judge(
    reference: Evidence,
    resumed: Evidence,
    control: Evidence,
    twins: Mapping[str, Evidence],
    *,
    checkpoints: Mapping[str, Sequence[CheckpointInfo]],
    kills: Sequence[Recovery] | None,
    kills_planned: int,
) -> Judgement:
    """Compare every trajectory with the uninterrupted one."""
    comparison = compare(reference, resumed)
    twin_comparisons = {fault: compare(reference, twin) for fault, twin in twins.items()}
    return Judgement(
        reference=reference,
        resumed=comparison,
        control=compare(reference, control),
        twins=twin_comparisons,
        cause=None if comparison.same else diagnose(reference, resumed),
        twin_causes={
            fault: NO_CAUSE if twin_comparisons[fault].same else diagnose(reference, twin)
            for fault, twin in twins.items()
        },
        checkpoints=checkpoints,
        kills=kills,
        kills_planned=kills_planned,
    )


def checks(judgement: Judgement) -> list[Check]:
    """Return the checks in display order."""
    resumed = judgement.resumed
    because = "" if judgement.cause is None else f"{judgement.cause.name}: {judgement.cause.text}"
    found = [
        _tensors("parameters", "Parameters equal bit for bit", resumed.parameters, because),
        _tensors("optimizer", "Optimizer and schedule equal bit for bit", resumed.optimizer, because),
        _rng(resumed, because),
        _sampler(resumed, because),
        _tensors("losses", "Loss of every update equal bit for bit", {"the losses": resumed.losses}, because),
        _control(judgement.control),
        *(_twin(fault, judgement) for fault in EXPECTED_CAUSE),
        _valid(judgement),
    ]
    return found if judgement.kills is None else [*found, _kills(judgement)]


def _tensors(name: str, title: str, differences: Mapping[str, Difference], because: str) -> Check:
    other = [tensor for tensor, item in differences.items() if item.unequal]
    count = sum(item.unequal for item in differences.values())
    where = "every bit is equal"
    if other:
        why = differences[other[0]].why
        where = f"{count} numbers differ, first in {other[0]}{f' ({why})' if why else ''}. {because}"
    return Check(
        name=name,
        title=title,
        passed=not other,
        measured=encode_number(largest(differences)),
        limit=0,
        relation=Relation.EQUAL,
        detail=where,
    )


def _rng(resumed: Comparison, because: str) -> Check:
    other = {rank: names for rank, names in resumed.rng.items() if names}
    detail = "; ".join(f"rank {rank}: {', '.join(names)}" for rank, names in other.items())
    return Check(
        name="rng",
        title="Random generators of every rank equal",
        passed=not other,
        measured=len(other),
        limit=0,
        relation=Relation.EQUAL,
        unit="ranks",
        detail=f"{detail}. {because}" if other else f"{len(resumed.rng)} ranks compared",
    )


def _sampler(resumed: Comparison, because: str) -> Check:
    other = [f"rank {rank} from update {resumed.ids[rank]} on" for rank in resumed.other_ids]
    return Check(
        name="sampler",
        title="Every rank drew the same ids in the same order",
        passed=not other,
        measured=len(other),
        limit=0,
        relation=Relation.EQUAL,
        unit="ranks",
        detail=f"different ids: {', '.join(other)}. {because}" if other else f"{len(resumed.ids)} ranks compared",
    )


def _control(control: Comparison) -> Check:
    measured = largest({**control.parameters, **control.optimizer, "losses": control.losses})
    detail = (
        "two uninterrupted trainings agree bit for bit"
        if control.same
        else "not bit-reproducible on this machine: two uninterrupted trainings differ, so a resume cannot be judged"
    )
    title = "Control: two uninterrupted trainings agree"
    return Check(
        name="control",
        title=title,
        passed=control.same,
        measured=encode_number(measured),
        limit=0,
        relation=Relation.EQUAL,
        detail=detail,
    )


def _twin(fault: str, judgement: Judgement) -> Check:
    comparison, cause, expected = judgement.twins[fault], judgement.twin_causes[fault], EXPECTED_CAUSE[fault]
    passed: bool | None = cause.name == expected
    detail = f"detected as {cause.name}: {cause.text}"
    if comparison.same:
        # A fault without effect cannot be detected in the final state, so the run proves nothing about it.
        passed, detail = None, "the fault changed nothing in this run, so it is unknown whether it would be detected"
    elif not passed:
        detail = f"expected cause {expected}, but {detail}"
    return Check(
        name=f"{fault}_detected",
        title=f"Detected: {TWIN_TITLES[fault][0].lower()}{TWIN_TITLES[fault][1:]}",
        passed=passed,
        measured=encode_number(_effect(comparison)),
        limit=0,
        relation=Relation.AT_LEAST,
        strict=True,
        detail=detail,
    )


def _effect(comparison: Comparison) -> float | None:
    """Return how far a fault moved the parameters, else the rest; None if no compared number shows it.

    A fault is detected by what was restored, so it can be detected by generators or ids while all numbers are equal.
    """
    if comparison.same:
        return 0.0
    rest = {**comparison.optimizer, "losses": comparison.losses}
    return largest(comparison.parameters) or largest(rest) or None


def _valid(judgement: Judgement) -> Check:
    infos = [(name, info) for name, listed in judgement.checkpoints.items() for info in listed]
    bad = [f"{name}/{info.path.name}: {info.problem}" for name, info in infos if not info.valid]
    return Check(
        name="checkpoints_valid",
        title="Every checkpoint is complete",
        passed=bool(infos) and not bad,
        measured=len(bad),
        limit=0,
        relation=Relation.EQUAL,
        unit="checkpoints",
        detail="; ".join(bad) or f"{len(infos)} checkpoints, every digest verified",
    )


def _kills(judgement: Judgement) -> Check:
    hits = len(judgement.kills or [])
    enough = hits >= judgement.kills_planned
    return Check(
        name="kills_survived",
        title="Every planned kill hit a live rank, and the training continued",
        passed=True if enough else None,
        measured=hits,
        limit=judgement.kills_planned,
        relation=Relation.AT_LEAST,
        unit="kills",
        detail=""
        if enough
        else f"{hits} of {judgement.kills_planned} kills hit a live rank: fewer interruptions than requested",
    )
