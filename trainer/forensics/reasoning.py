"""The line of thinking of a diagnosis in sentences, and what the numbers exclude."""

from collections.abc import Iterator, Sequence

from trainer.forensics.accounts import Account, uneven
from trainer.forensics.between import changes_seen
from trainer.forensics.cells import Window
from trainer.forensics.examine import Case
from trainer.forensics.explain import Status
from trainer.forensics.findings import LOCAL, Findings
from trainer.forensics.measures import FACTORS, SHAPES, late
from trainer.forensics.words import compared, divisors, listed, number, scaled, share


def reasoning(case: Case, found: Findings) -> list[str]:
    """Return the line of thinking, one sentence per step."""
    return [*_solving(case), *_reading(case, found)]


def _solving(case: Case) -> Iterator[str]:
    system = case.systems[0]
    cells = sum(column.kind == "units" for column in system.columns)
    rows = sum(system.rows.values())
    steps = f"{len(case.systems)} step{'s' if len(case.systems) > 1 else ''}"
    yield (
        f"The gradient sums of {cells} micro-batches on {system.ranks} ranks were measured one by one, in {steps}, and "
        f"their weights solved by least squares from {rows:,} numbers per rank."
    )
    if case.carried:
        yield "After taking off the gradient that was left from the step before, known mistakes explain the rest."
    if case.grouping.odd:
        return
    residual = case.residual
    if residual is not None:
        yield f"These weights leave {share(residual)} of the gradient unexplained, which is rounding."
    if any(fit.redundancy <= 0 for group in case.grouping.groups for fit in group.solved):
        yield "There are no more numbers than unknown weights, so a difference that is not a weighting could not show."
    if not case.grouping.trusted:
        return
    if "padding" in case.grouping.kinds:
        yield "The micro-batches alone did not explain the gradient; with their padding they do."
    if "stale" in case.grouping.kinds:
        yield "The micro-batches alone did not explain the gradient; with what the step before left over they do."


def _reading(case: Case, found: Findings) -> Iterator[str]:
    if case.clean:
        yield f"Every rank's gradient is the objective's own: every {case.evidence.unit} has the same weight, 1 / N."
        return
    yield from changes_seen(case.evidence.steps)
    if case.grouping.odd:
        names = "" if len(case.grouping.odd) == len(case.systems[0].names) else f" of {listed(case.grouping.odd)}"
        residual = share(case.residual or 0.0)
        yield f"No weights of the micro-batches give the gradient{names}: {residual} is left, so it is not a weighting."
        return
    wrong = [system.step.step for system, fine in zip(case.systems, case.right, strict=True) if not fine]
    if len(wrong) < len(case.systems):
        yield f"Wrong in step{'s' if len(wrong) > 1 else ''} {', '.join(map(str, wrong))}, right in the others."
    for account in case.accounts:
        about = f"Parameters {listed(account.parameters)}: " if len(case.accounts) > 1 else ""
        for sentence in _of_account(case, account):
            yield about + (sentence if about else sentence[0].upper() + sentence[1:])
    if found.status is Status.AMBIGUOUS:
        texts = [" with ".join(names) for names in found.alternatives]
        if len(texts) > 1:
            yield f"The same weights come from {', or from '.join(texts)}: this window cannot tell them apart."
    if found.status is Status.IDENTIFIED:
        yield from _look_alikes(case, found)
    if found.status is Status.UNEXPLAINED and found.open is not None and found.open.separable:
        yield "No known mistake and no combination of known mistakes gives these weights."


def _look_alikes(case: Case, found: Findings) -> Iterator[str]:
    """Yield which constant factor of the code's own would give the same weights as a mistake that is named."""
    system = case.systems[case.shown]
    places = 1 + max((column.micro_batch for column in system.columns if column.kind == "units"), default=0)
    values = {
        "missing_world_size": (1 / system.ranks, "ranks"),
        "extra_world_size": (float(system.ranks), "ranks"),
        "extra_accumulation_division": (1 / places, "micro-batches"),
        "missing_accumulation_division": (float(places), "micro-batches"),
    }
    for name in sorted({named.name for named in found.named} & values.keys()):
        value, what = values[name]
        yield (
            f"A constant factor of {number(value)} in the loss would look like {name}. A run with another number of "
            f"{what} tells them apart: a constant does not change with it."
        )


def _of_account(case: Case, account: Account) -> Iterator[str]:
    unit, window = case.evidence.unit, _window(case, account)
    if not account.separable:
        yield (
            f"only {account.known} of {account.cells} independent combinations of weights can be determined, "
            "because the gradients of the micro-batches are too much alike."
        )
        if account.status is Status.AMBIGUOUS:
            yield f"Known mistakes that give exactly this gradient: {_sets(account.alternatives)}. Others are possible."
        elif account.status is Status.UNEXPLAINED:
            yield "No known mistake gives this gradient."
        return
    if window is None:
        yield "the ranks' gradients differ in all micro-batches, not only in those of their own."
        for rank, seen in enumerate(account.by_rank):
            yield f"in rank {rank}'s gradient: {compared(seen, unit)} {scaled(seen, unit)}"
        return
    if LOCAL in account.names:
        yield "every rank's gradient holds only its own micro-batches; divided by the number of ranks:"
    elif late(window):
        yield f"{len(late(window))} micro-batches are only in their own rank's gradient."
    else:
        yield "all ranks have the same gradient, so it was reduced."
    how = compared(window, unit)
    whole = f" {scaled(window, unit)}" if uneven([window], 1e-6) else ""
    yield how if whole.strip() == how else how + whole
    if account.status is Status.UNEXPLAINED and len(window.counted) == len(window.supervised):
        yield divisors(window, unit)


def ruled_out(case: Case, found: Findings) -> list[str]:
    """Return what the numbers exclude, and why."""
    names = {named.name for named in found.named}
    if case.grouping.odd:
        return [
            "Any wrong divisor, factor or missing reduction: they change only weights, and no weights fit.",
            *(["A left-over gradient: it was tried as a separate column."] if _has(case, "stale") else []),
            *(["Padding in the loss: it was tried as separate columns."] if _has(case, "padding") else []),
        ]
    return list(_excluded(case, names))


def _excluded(case: Case, names: set[str]) -> Iterator[str]:
    windows = [window for account in case.accounts for window in account.windows]
    if not case.clean and not windows:
        return
    local = any(cell.local for window in windows for cell in window.cells)
    if not local and case.systems[0].ranks > 1:
        yield "A missing reduction: every rank has all micro-batches in its gradient."
    if not names & {*SHAPES, "dropped_microbatch", "repeated_samples"} and not uneven(windows, case.evidence.tolerance):
        yield "A mean of means, of ranks or of micro-batches: all units of a window have the same weight."
    if not names & FACTORS and all(abs(window.total_weight - 1) <= 1e-5 for window in windows):
        yield "A missing or extra factor: the weights sum to 1."
    if "dropped_microbatch" not in names and not any(window.dropped for window in windows):
        yield "Gradients cleared inside the window: no micro-batch lacks weight."
    if "stale_gradients" not in names and len(case.systems) > 1 and _has(case, "stale"):
        yield "A gradient left over from the step before: the gradient is explained without it."
    if "padding_in_loss" not in names and any(part.padding for part in case.systems[0].step.parts):
        yield "Padding in the loss: the gradient is explained without it."


def _has(case: Case, kind: str) -> bool:
    return any(column.kind == kind for system in case.systems for column in system.columns)


def _sets(alternatives: Sequence[Sequence[str]]) -> str:
    return "; ".join(" with ".join(names) for names in alternatives)


def _window(case: Case, account: Account) -> Window | None:
    return account.windows[case.shown] if account.windows else None
