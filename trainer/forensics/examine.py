"""From evidence to accounts: solves all steps, groups the parameters and reads what each group's weights say."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from trainer.forensics.accounts import Account, account
from trainer.forensics.evidence import Evidence, StepEvidence
from trainer.forensics.explain import Status
from trainer.forensics.groups import Group, Grouping, grouped
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
    if any(step.before for step in evidence.steps) and _unexplained(case):
        carried = _case(evidence, [System.of(_without_before(step)) for step in evidence.steps])
        if not carried.grouping.odd and not _unexplained(carried):
            return replace(carried, carried=True, right=case.right)
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
    accounts = [
        Account(parameters=group.names, status=Status.CLEAN) if all(right) else account(systems, group, tolerance)
        for group in grouping.groups
    ]
    return Case(evidence=evidence, systems=systems, right=right, grouping=grouping, accounts=accounts)


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
