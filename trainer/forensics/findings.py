"""From accounts to the mistakes that a diagnosis names, those of some parameters apart from those of all."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from trainer.forensics.accounts import Account
from trainer.forensics.examine import Case
from trainer.forensics.explain import Status

LOCAL = "unsynchronised_step"
AGREE = 1e-3
"""An auxiliary loss is off if its weight differs by more than this share."""


@dataclass(slots=True, kw_only=True)
class Named:
    """A mistake, the account it was found in, and its numbers."""

    name: str
    account: Account
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Findings:
    """All mistakes in the weights."""

    status: Status
    named: list[Named] = field(default_factory=list)
    alternatives: list[list[str]] = field(default_factory=list)
    open: Account | None = None
    """The account that no known mistake explains."""


def findings(case: Case) -> Findings:
    """Return the mistakes of all groups together."""
    if case.clean:
        return Findings(status=Status.CLEAN)
    if case.grouping.odd:
        return _residual(case)
    local = _unreduced(case.accounts)
    found = Findings(status=Status.CLEAN)
    reduced = [account for place, account in enumerate(case.accounts) if place not in local]
    for place in sorted(range(len(case.accounts)), key=lambda place: place != case.main):
        account = case.accounts[place]
        _add(found, case, _left_out(account, reduced[0]) if place in local else account, unreduced=place in local)
    for name, numbers in _auxiliary(case):
        found.named.append(Named(name=name, account=case.accounts[case.main], numbers=numbers))
    _complete(found)
    if case.rivals and found.status is not Status.UNEXPLAINED:
        found.status = Status.AMBIGUOUS
        mine = sorted({named.name for named in found.named})
        found.alternatives = [*(found.alternatives or [mine]), *(list(names) for names in case.rivals)]
    if found.status is Status.CLEAN:
        found.status = Status.IDENTIFIED if found.named else Status.UNEXPLAINED
    return found


def _add(found: Findings, case: Case, account: Account, *, unreduced: bool) -> None:
    names = set(account.names)
    if case.carried:
        names.add("stale_gradients")
    if unreduced:
        names = (names - {LOCAL}) | {"unreduced_parameters"}
    everywhere = len(case.accounts) == 1
    for name in sorted(names, key=_order):
        known = next((item for item in found.named if item.name == name), None)
        if known is not None and "parameters" in known.numbers:
            known.numbers["parameters"] = [*known.numbers["parameters"], *account.parameters]
        elif known is None:
            numbers: dict[str, Any] = dict(account.numbers)
            if account.steps:
                numbers["steps"] = list(account.steps)
            if not everywhere and (name == "unreduced_parameters" or not _shared(case, name)):
                numbers["parameters"] = list(account.parameters)
            found.named.append(Named(name=name, account=account, numbers=numbers))
    if account.status is Status.UNEXPLAINED:
        found.status, found.open = Status.UNEXPLAINED, found.open or account
    elif account.status is Status.AMBIGUOUS and found.status is not Status.UNEXPLAINED:
        found.status = Status.AMBIGUOUS
        if not found.alternatives:
            more = names - set(account.names)
            gone = {LOCAL} if unreduced else set()
            found.alternatives = [sorted({*one, *more} - gone) for one in account.alternatives]
    elif names and found.status is Status.CLEAN:
        found.status = Status.IDENTIFIED


def _complete(found: Findings) -> None:
    """Add what was found in other parameters to every alternative."""
    varying = {name for one in found.alternatives for name in one}
    more = {named.name for named in found.named} - varying
    found.alternatives = [sorted({*one, *more}) for one in found.alternatives]


def _shared(case: Case, name: str) -> bool:
    return all(name in account.names for account in case.accounts)


def _unreduced(accounts: Sequence[Account]) -> set[int]:
    """Return the groups that are not reduced although others are."""
    local = {place for place, account in enumerate(accounts) if LOCAL in account.names}
    return local if len(local) < len(accounts) else set()


def _left_out(account: Account, reduced: Account) -> Account:
    """Return the account of unreduced parameters without the factor that it seems to miss if others are added up."""
    summed = reduced.names | {LOCAL, "missing_world_size"}
    sets = [frozenset(names) for names in account.alternatives or (tuple(account.names),)]
    if "missing_world_size" in reduced.names or summed not in sets:
        return account
    return replace(account, status=Status.IDENTIFIED, names=reduced.names | {LOCAL}, alternatives=())


def _residual(case: Case) -> Findings:
    layers = list(case.evidence.batch_statistics)
    found = Findings(status=Status.UNEXPLAINED)
    if layers:
        account = Account(parameters=case.grouping.odd, status=Status.IDENTIFIED)
        named = Named(name="batch_statistics", account=account, numbers={"layers": layers})
        return Findings(status=Status.IDENTIFIED, named=[named])
    return found


def _auxiliary(case: Case) -> list[tuple[str, dict[str, Any]]]:
    """Return the auxiliary loss if its weight is neither right nor off by the factor of all units."""
    ratios, scales = [], []
    for system, fit in zip(case.systems, case.group.solved, strict=True):
        local = LOCAL in case.accounts[case.main].names
        for line, place in enumerate(fit.places):
            column = system.columns[place]
            if column.kind == "extra" and bool(fit.determined[line]):
                weight = float(fit.weights[line, column.rank]) / (system.ranks if local else 1)
                ratios.append(weight / float(system.expected[place]))
    for window in case.accounts[case.main].windows:
        scales.append(window.total_weight)
    if not ratios or _near(ratios, [1.0]) or (scales and _near(ratios, scales)):
        return []
    return [("auxiliary_loss_weight", {"smallest_ratio": min(ratios), "largest_ratio": max(ratios)})]


def _near(ratios: Sequence[float], values: Sequence[float]) -> bool:
    center = torch.tensor(values).mean()
    return all(abs(ratio - float(center)) <= AGREE * max(1.0, abs(float(center))) for ratio in ratios)


ORDER = (
    "unsynchronised_step",
    "sync_on_wrong_microbatch",
    "unreduced_parameters",
    "stale_gradients",
    "dropped_microbatch",
    "repeated_samples",
    "mean_of_means",
    "rank_mean",
    "microbatch_denominator",
    "padding_in_loss",
    "padding_in_denominator",
    "local_count_as_global",
)


def _order(name: str) -> tuple[int, str]:
    return ORDER.index(name) if name in ORDER else len(ORDER), name
