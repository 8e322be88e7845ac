"""From evidence to accounts: solves all steps, groups the parameters and reads what each group's weights say."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from trainer.forensics.accounts import Account, account
from trainer.forensics.evidence import Evidence, StepEvidence
from trainer.forensics.explain import Status
from trainer.forensics.groups import Group, Grouping, grouped, parted
from trainer.forensics.solve import shares, solve
from trainer.forensics.system import System


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that was found out about the gradients."""

    evidence: Evidence
    systems: Sequence[System]
    right: Sequence[bool]
    """Per step, whether every rank has the objective's own gradient."""
    grouping: Grouping
    accounts: Sequence[Account]
    """One per group."""
    carried: bool = False
    """Whether the left-over gradient was taken off before the weights were solved."""
    rivals: Sequence[tuple[str, ...]] = ()
    """Mistakes with a left-over gradient among them that explain the gradients as well as those found."""

    @property
    def clean(self) -> bool:
        """Whether all gradients are right."""
        return all(self.right)

    @property
    def main(self) -> int:
        """The group that holds most of the gradient."""
        rows = self.systems[0].rows
        sizes = [sum(rows[name] for name in group.names) for group in self.grouping.groups]
        return max(range(len(sizes)), key=sizes.__getitem__, default=-1)

    @property
    def shown(self) -> int:
        """The step whose weights are shown: the first that is wrong."""
        return self.right.index(False) if False in self.right else 0

    @property
    def group(self) -> Group:
        """The main group."""
        return self.grouping.groups[self.main]

    @property
    def residual(self) -> float | None:
        """The largest residual of all steps and ranks, as a share of the gradient."""
        groups = self.grouping.groups
        found = [fit.residual for group in groups for fit in group.solved]
        if self.grouping.odd:
            found.append(_odd_share(self.systems, self.grouping, self.evidence.tolerance))
        return max(found, default=None)


def examine(evidence: Evidence) -> Case:
    """Return what the gradients say. Raises ValueError if vectors of a parameter differ in size."""
    systems = [System.of(step) for step in evidence.steps]
    case = _case(evidence, systems)
    if case.clean or case.grouping.odd or not any(step.before for step in evidence.steps):
        return case
    if not all(_looks_like_weights(system, evidence.tolerance) for system in systems):
        return case
    # A left-over gradient looks like a weight where windows or parameters hardly change between steps.
    carried = _case(evidence, [System.of(_without_before(step)) for step in evidence.steps])
    if carried.grouping.odd or _unexplained(carried):
        return case
    mine, theirs = _names(case), _names(carried) | {"stale_gradients"}
    if _unexplained(case) or len(theirs) < len(mine):
        return replace(carried, carried=True, right=case.right)
    if "stale_gradients" not in mine and len(theirs) == len(mine):
        return replace(case, rivals=[tuple(sorted(theirs))])
    return case


def unusable(evidence: Evidence) -> str:
    """Return why nothing can be solved, or nothing."""
    if not evidence.steps:
        return "No step was measured."
    for step in evidence.steps:
        if not any(part.kind == "units" and part.units > 0 for part in step.parts):
            return f"Step {step.step}: no micro-batch holds a {evidence.unit}, so there is no gradient to compare with."
        for rank, vectors in enumerate(step.observed):
            broken = [name for name, value in vectors.items() if not bool(torch.isfinite(value).all())]
            if broken:
                return f"Step {step.step}: the gradient of {broken[0]} on rank {rank} is not finite."
        for part in step.parts:
            broken = [name for name, value in part.gradient.items() if not bool(torch.isfinite(value).all())]
            if broken:
                where = f"micro-batch {part.micro_batch} of rank {part.rank}"
                return f"Step {step.step}: the gradient of {broken[0]} in {where} is not finite by itself."
    return ""


def _case(evidence: Evidence, systems: Sequence[System]) -> Case:
    tolerance = evidence.tolerance
    right = [_is_right(system, tolerance) for system in systems]
    grouping = grouped(systems, tolerance)
    if all(right) and grouping.odd:
        grouping = Grouping(kinds=grouping.kinds)
    grouping.groups = [part for group in grouping.groups for part in parted(systems, group, grouping.kinds, tolerance)]
    accounts = [
        account(systems, group, tolerance) if not all(right) else Account(parameters=group.names, status=Status.CLEAN)
        for group in grouping.groups
    ]
    return Case(evidence=evidence, systems=systems, right=right, grouping=grouping, accounts=accounts)


def _looks_like_weights(system: System, tolerance: float) -> bool:
    """Return whether the left-over gradient is a sum of this step's own columns."""
    stale = system.places(("stale",))
    whole, _ = system.matrix(system.names, range(len(system.columns)))
    columns, left = whole[:, system.places(("units", "extra"))], whole[:, stale]
    basis, _ = torch.linalg.qr(columns)
    rest = torch.linalg.vector_norm(left - basis @ (basis.T @ left), dim=0)
    return bool((rest <= tolerance * torch.linalg.vector_norm(left, dim=0)).all())


def _names(case: Case) -> set[str]:
    return {name for found in case.accounts for name in found.names}


def _unexplained(case: Case) -> bool:
    return any(found.status is Status.UNEXPLAINED for found in case.accounts)


def _is_right(system: System, tolerance: float) -> bool:
    places = range(len(system.columns))
    weights = system.expected[:, None].expand(-1, system.ranks)
    return bool((shares(system, system.names, places, weights, tolerance) <= tolerance).all())


def _without_before(step: StepEvidence) -> StepEvidence:
    if not step.before:
        return step
    observed = [
        {name: value - before[name] for name, value in vectors.items()}
        for vectors, before in zip(step.observed, step.before, strict=True)
    ]
    return replace(step, observed=observed, before=())


def _odd_share(systems: Sequence[System], grouping: Grouping, tolerance: float) -> float:
    """Return the residual of the parameters that no weights explain, as a share of the whole gradient."""
    worst = 0.0
    for system in systems:
        fit = solve(system, grouping.odd, grouping.kinds, tolerance)
        columns, sides = system.matrix(grouping.odd, fit.places)
        rest = torch.linalg.vector_norm(columns @ fit.weights - sides, dim=0)
        whole = torch.cat([system.blocks[name] for name in system.names])[:, len(system.columns) :]
        sizes = torch.linalg.vector_norm(whole, dim=0).clamp(min=1e-300)
        worst = max(worst, float((rest / sizes).max()))
    return min(1.0, worst)
