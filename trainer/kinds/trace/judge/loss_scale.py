"""Check `loss_scale`: whether the weights of all units sum to 1, and where a factor is missing or extra."""

import math
from collections.abc import Iterator, Mapping, Sequence

from trainer.forensics.catalogue import SCALES
from trainer.forensics.cells import ratio
from trainer.forensics.explain import Status
from trainer.kinds.trace.judge.findings import Finding, Judged, places, several
from trainer.kinds.trace.judge.records import WindowRecord
from trainer.kinds.trace.judge.runs import Run
from trainer.kinds.trace.judge.verdicts import Understanding
from trainer.kinds.trace.judge.weighing import Weighed

CHECK = "loss_scale"
CAUSES: Mapping[str, tuple[str, str]] = {
    **{name: (mistake.explanation, mistake.fix) for name, mistake in SCALES.items()},
    "unexplained": (
        "No known mistake gives this sum.",
        "Compare the sum with the script's own factors of the loss.",
    ),
}
ADAPTIVE = (
    " {name} divides every gradient by its own running size, so a constant factor hardly changes its steps; it does "
    "change gradient clipping, logged norms and the meaning of epsilon."
)


def judge(run: Run, understood: Sequence[tuple[int, Understanding]]) -> Judged:
    """Judge the sums of all optimizers' weights; left out where several losses are added up, whose sum says nothing."""
    clipped = [item for number in run.steps for item in (*_clipped(run, number), *_apart(run, number))]
    judged = [(number, item) for number, item in understood if item.clear and item.scaled]
    found = [finding for _, item in judged for finding in _findings(run, item)]
    hidden = list(_hidden(run, understood))
    if not judged and not clipped and any(not item.alone for _, item in understood):
        return Judged.left_out(CHECK, *hidden)
    seen = bool(judged) and len(judged) == len(understood)
    count = sum(len(item.clear) for _, item in judged)
    detail = f"{several(count, 'window')}: the weights of all units sum to 1" if seen else " ".join(hidden)
    return Judged(
        name=CHECK,
        findings=[*found, *clipped],
        seen=seen,
        detail=detail or "No window was weighed, so the sum of its weights is not known.",
        hidden=hidden,
    )


def _hidden(run: Run, understood: Sequence[tuple[int, Understanding]]) -> Iterator[str]:
    for name, count in run.unseen_losses.items():
        yield f"{name} was called {count:,} times: what it counts is not known, so it is not weighed."
    if not run.unseen_losses and any(not item.alone for _, item in understood):
        yield "Several losses are added up in one backward pass: how they are weighed is the script's own choice."
    if any(item.alone and item.clear and not item.scaled for _, item in understood):
        yield "Whether gradients are averaged or added is not visible, so the sum of the weights is not known."


def _findings(run: Run, item: Understanding) -> Iterator[Finding]:
    by_name: dict[str, list[Weighed]] = {}
    others: dict[str, list[str]] = {}
    for group in item.groups:
        names = [name for name in group.names if name in SCALES]
        if group.reading.status is Status.UNEXPLAINED and _off(group.windows):
            names = ["unexplained"]
        for name in names:
            by_name.setdefault(name, []).extend(group.windows)
            others.setdefault(name, []).extend(group.others)
    looked_at = len(item.weighed)
    for name, windows in by_name.items():
        yield _finding(run, name, windows, looked_at=looked_at, others=list(dict.fromkeys(others[name])))


def _off(windows: Sequence[Weighed]) -> bool:
    return any(not math.isclose(one.window.total_weight, 1.0, rel_tol=2 * one.tolerance) for one in windows)


def _finding(run: Run, name: str, windows: Sequence[Weighed], *, looked_at: int, others: Sequence[str]) -> Finding:
    sums = [one.window.total_weight for one in windows]
    worst = max(windows, key=lambda one: abs(one.window.total_weight - 1))
    cause, change = CAUSES[name]
    about = run.optimizers.get(worst.step.optimizer)
    adaptive = about is not None and about.adaptive
    even = all(ratio(one.window) <= 1 + one.tolerance for one in windows)
    constant = name == "unexplained" and even and math.isclose(min(sums), max(sums), rel_tol=1e-3)
    span = (
        f"{min(sums):.6g}"
        if math.isclose(min(sums), max(sums), rel_tol=1e-5)
        else f"{min(sums):.6g} to {max(sums):.6g}"
    )
    numbers = f" The weights sum to {span} instead of 1 in {several(len(windows), 'window')} of {looked_at:,}."
    also = f" The same sum would come from {' or from '.join(others)}." if others else ""
    why = ADAPTIVE.format(name=about.name) if about is not None and adaptive else ""
    return Finding(
        name=name,
        severity="note" if adaptive or constant else "wrong",
        check=CHECK,
        detail=cause + numbers + also + why,
        windows=len(windows),
        places=places(run.first, worst.sites),
        measured={
            "sum": worst.window.total_weight,
            "world_size": run.world_size,
            "micro_batches": worst.step.micro_batches,
            "share_of_windows": len(windows) / looked_at,
            "step": worst.step.step,
            **({"alternatives": list(others)} if others else {}),
        },
        suggestion=f"{change} A factor that is meant to be there is accepted with --allow {name}.",
    )


def _clipped(run: Run, optimizer: int) -> Iterator[Finding]:
    records: list[WindowRecord] = [
        record
        for step in run.steps[optimizer]
        for rank, record in sorted(step.ranks.items())[:1]
        if record.clip and record.clip.before_unscale
    ]
    if records:
        scales = [scale for record in records for scale in record.scales if scale]
        yield Finding(
            name="clipped_before_unscale",
            severity="wrong",
            check=CHECK,
            detail=(
                f"In {several(len(records), 'window')} gradients were clipped while they still had the factor of the "
                f"GradScaler ({max(scales, default=0):,.0f}), so the limit is smaller by that factor."
            ),
            windows=len(records),
            places=places(run.first, [record.clip.site for record in records if record.clip]),
            measured={"scale": max(scales, default=0.0), "step": records[0].step},
            suggestion="Call scaler.unscale_(optimizer) before the gradients are clipped.",
        )


def _apart(run: Run, optimizer: int) -> Iterator[Finding]:
    """Yield that ranks multiplied the same micro-batch's loss by different scales."""
    wrong = [
        (step, place, row)
        for step in run.steps[optimizer]
        for place, row in enumerate(zip(*(record.scales for _, record in sorted(step.ranks.items())), strict=False))
        if len(set(row)) > 1
    ]
    if not wrong:
        return
    first, place, row = wrong[0]
    ranks = sorted(first.ranks)
    values = ", ".join(f"{scale or 0:,.6g} on rank {rank}" for rank, scale in list(zip(ranks, row, strict=False))[:8])
    steps = {step.step for step, _, _ in wrong}
    sites = [first.ranks[rank].cells[place].place for rank in ranks[:1] if place < len(first.ranks[rank].cells)]
    yield Finding(
        name="loss_scales_differ",
        severity="wrong",
        check=CHECK,
        detail=(
            f"The scale of the GradScaler differs between ranks in {several(len(steps), 'window')}, for the first time "
            f"in step {first.step}: {values}. The reduction adds gradients of different scales, and every rank "
            "divides by its own."
        ),
        windows=len(steps),
        places=places(run.first, sites),
        measured={"step": first.step, "scales": [scale or 0.0 for scale in row[:20]]},
        suggestion=(
            "Update the scalers of all ranks alike: the same growth_interval, and the same decision about an overflow "
            "on every rank."
        ),
    )
