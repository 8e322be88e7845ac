"""Check `token_weights`: whether every unit of a window weighs the same, and if not, by which mistake."""

import math
from collections.abc import Iterator, Mapping, Sequence

from trainer.forensics.catalogue import OTHERS, SHAPES
from trainer.forensics.cells import ratio
from trainer.forensics.explain import Status
from trainer.kinds.trace.judge.findings import Finding, Judged, places, several
from trainer.kinds.trace.judge.runs import Run
from trainer.kinds.trace.judge.verdicts import MEANS, Group, Understanding
from trainer.kinds.trace.judge.weighing import Weighed

CHECK = "token_weights"
UNITS: Mapping[str, str] = {"token": "target", "sequence": "sequence", "sample": "sample"}
CAUSES: Mapping[str, tuple[str, str]] = {
    **{name: (mistake.explanation, mistake.fix) for name, mistake in SHAPES.items()},
    "class_weights": (
        "The class-weighted mean divides by the class weights of a single micro-batch, and every batch has others.",
        "Use reduction='sum', and divide by the sum of the class weights of all targets of the window.",
    ),
    "short_last_window": (
        "The window has {now} micro-batches but is divided by {usual}.",
        OTHERS["short_last_window"].fix,
    ),
    "uneven_last_batch": (
        "A smaller batch is averaged like a full one, so its {unit}s weigh more.",
        "Use drop_last=True, or weigh every micro-batch by its number of targets.",
    ),
}


def judge(run: Run, understood: Sequence[tuple[int, Understanding]], unit: str) -> Judged:
    """Judge the weights of all optimizers; `understood` pairs their numbers with what their weights say."""
    found = [finding for _, item in understood for finding in _findings(run, item, UNITS[unit])]
    found += [finding for _, item in understood for finding in _empty(run, item, UNITS[unit])]
    windows = sum(len(item.clear) for _, item in understood)
    seen = bool(understood) and all(item.clear or not item.weighed for _, item in understood) and windows > 0
    detail = f"{several(windows, 'window')} weighed, every {UNITS[unit]} of a window weighs the same"
    hidden = [text for _, item in understood for text in _hidden(item)]
    if not seen:
        detail = " ".join(hidden) or "No loss was seen whose gradient arrived, so nothing was weighed."
    return Judged(name=CHECK, findings=found, seen=seen, detail=detail, hidden=hidden)


def _hidden(item: Understanding) -> Iterator[str]:
    problems: dict[str, int] = {}
    for one in item.weighed:
        problem = one.problem or ("gradients that were not synchronised" if one.local else "")
        if problem:
            problems[problem] = problems.get(problem, 0) + 1
    for problem, count in problems.items():
        yield f"{several(count, 'window')} not weighed: {problem}."


def _findings(run: Run, item: Understanding, unit: str) -> Iterator[Finding]:
    by_name: dict[str, list[Group]] = {}
    for place, group in enumerate(item.groups):
        for name in _names(run, item, group, first=place == 0):
            by_name.setdefault(name, []).append(group)
    if item.late:
        by_name.setdefault("uneven_last_batch", []).append(Group(item.groups[0].reading, item.late))
    for name, groups in by_name.items():
        windows = [one for group in groups for one in group.windows]
        yield _finding(run, item, name, windows, unit, others=[text for group in groups for text in group.others])


def _empty(run: Run, item: Understanding, unit: str) -> Iterator[Finding]:
    """Yield that the optimizer stepped although no rank had anything to learn from."""
    cells = [(one, one.window.cells) for one in item.weighed if item.alone and not one.problem]
    empty = [one for one, found in cells if found and not any(cell.units for cell in found)]
    if not empty:
        return
    first = empty[0]
    yield Finding(
        name="empty_step",
        severity="note",
        check=CHECK,
        detail=(
            f"In {several(len(empty), 'window')} of {len(item.weighed):,} no rank has a supervised {unit}, first in "
            f"step {first.step.step}, and the optimizer stepped on gradients of 0: momentum and weight decay still "
            "move the parameters."
        ),
        windows=len(empty),
        places=places(run.first, first.sites),
        measured={"steps": [one.step.step for one in empty[:20]]},
        suggestion="All-reduce the count, and skip the optimizer's step on every rank where it is 0.",
    )


def _names(run: Run, item: Understanding, group: Group, *, first: bool) -> Iterator[str]:
    if group.reading.status is Status.UNEXPLAINED:
        if not group.reading.even:
            yield "unexplained"
        return
    main_even = not MEANS & set(item.groups[0].names)
    for name in group.names:
        if name == "short_last_window" or name in SHAPES:
            if name in MEANS and all(one.weighted for one in group.windows):
                yield "class_weights"
            elif (
                name in MEANS and not first and main_even and all(run.epochs.is_last(one.step) for one in group.windows)
            ):
                yield "uneven_last_batch"
            else:
                yield name


def _finding(
    run: Run, item: Understanding, name: str, windows: Sequence[Weighed], unit: str, *, others: Sequence[str]
) -> Finding:
    worst = max(windows, key=lambda one: (ratio(one.window), one.step.step))
    weights = [abs(cell.weight) for cell in worst.window.supervised]
    units = math.fsum(cell.units for cell in worst.window.supervised)
    equal = 1 / units if units else 0.0
    usual = run.usual_micro_batches(worst.step.optimizer)
    cause, change = CAUSES.get(name, UNEXPLAINED)
    note = name == "uneven_last_batch" and all(run.epochs.is_last(one.step) for one in windows)
    low, high = f"{min(weights):.4g}", f"{max(weights):.4g}"
    span = low if low == high else f"{low} to {high}"
    numbers = (
        f"Step {worst.step.step:,}: a {unit} weighs {span}, equal weights would be "
        f"{equal:.4g}; {several(len(windows), 'window')} of {len(item.weighed):,} looked at."
    )
    also = f" The same weights would come from {' or from '.join(dict.fromkeys(others))}." if others else ""
    return Finding(
        name=name,
        severity="note" if note else "wrong",
        check=CHECK,
        detail=f"{cause.format(unit=unit, now=worst.step.micro_batches, usual=usual)} {numbers}{also}",
        windows=len(windows),
        places=places(run.first, worst.sites),
        measured={
            "ratio": ratio(worst.window),
            "smallest_weight": min(weights),
            "largest_weight": max(weights),
            "equal_weight": equal,
            "share_of_windows": len(windows) / len(item.weighed),
            "step": worst.step.step,
            **({"micro_batches": worst.step.micro_batches, "usual": usual} if name == "short_last_window" else {}),
            **({"alternatives": list(dict.fromkeys(others))} if others else {}),
        },
        suggestion=change,
    )


UNEXPLAINED = (
    "The weights are uneven, and no known mistake gives them.",
    "Compare the weights in the heat table with what the script divides by; --unit sequence if sequences should count.",
)
