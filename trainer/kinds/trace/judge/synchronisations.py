"""Check `synchronisations`: how often gradients are reduced per step, and with which micro-batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainer.kinds.trace.judge.agreement import compare
from trainer.kinds.trace.judge.findings import Finding, Judged, places, several
from trainer.kinds.trace.judge.records import CellRecord, WindowRecord
from trainer.kinds.trace.judge.runs import Run, Step

CHECK = "synchronisations"
REDUCING = ("all_reduce", "reduce_scatter", "reduce", "all_gather", "broadcast", "all_to_all", "send")


@dataclass(frozen=True, slots=True)
class Syncs:
    """Reductions in one window of one rank."""

    count: int
    """Of the model that has the most."""
    at_last: bool
    """Whether one came with the last micro-batch that counts."""
    outside: int
    """Forwards that ran outside no_sync although their backward was inside."""


def of_window(run: Run, record: WindowRecord) -> Syncs:
    """Return the reductions of a window, several models side by side."""
    kept = [cell for cell in record.cells if not cell.cleared] or list(record.cells)
    counts: dict[int, int] = {}
    for cell in kept:
        several_models = cell.model < 0
        number = cell.syncs if not several_models and run.counted(cell.model) else int(run.synchronised(cell))
        counts[cell.model] = counts.get(cell.model, 0) + number
    last: dict[int, CellRecord] = {cell.model: cell for cell in kept}
    return Syncs(
        count=max(counts.values(), default=0),
        at_last=all(run.synchronised(cell) for cell in last.values() if counts[cell.model]),
        outside=sum(cell.forward_sync and not cell.backward_sync for cell in kept),
    )


def per_step(run: Run, optimizer: int) -> list[tuple[int, int]]:
    """Return (syncs, windows) for all windows of an optimizer, as far as they are counted."""
    totals = run.totals(optimizer)
    counted: dict[int, int] = {}
    if totals and _patterns_tell(run):
        for pattern in totals.patterns:
            if pattern[0]:  # a step without a backward has nothing to synchronise
                counted[pattern[1]] = counted.get(pattern[1], 0) + pattern[4]
    else:
        for step in run.steps.get(optimizer, []):
            for record in [record for record in step.ranks.values() if record.cells][:1]:
                syncs = of_window(run, record).count
                counted[syncs] = counted.get(syncs, 0) + 1
    return sorted(counted.items())


def _patterns_tell(run: Run) -> bool:
    """Return whether counts over all windows can be read as they are: one model, counted."""
    return len(run.models) == 1 and all(run.counted(number) for number in run.models) and len(run.optimizers) < 2


def judge(run: Run) -> Judged:
    """Judge the synchronisations; left out with a single rank."""
    if run.world_size < 2:
        return Judged.left_out(CHECK)
    leftovers = list(_leftovers(run))
    if run.engine in ("none", "deepspeed"):
        return _without_engine(run, leftovers)
    findings = [finding for number in run.steps for finding in _findings(run, number)]
    windows = sum(run.steps_done(number) for number in run.steps)
    hidden = [
        f"Reductions of model {number} are not counted: {run.hooks.get(number, 'no forward was seen')}."
        for number in run.models
        if not run.counted(number)
    ]
    blind = run.engine == "fsdp2" and not any(cell.syncs for cell in _cells(run))
    seen = windows > 0 and not hidden and not blind
    if blind:
        hidden.append("No reduce-scatter was seen, so the reductions of this engine are not counted.")
    counts = {syncs for number in run.steps for syncs, _ in per_step(run, number)}
    text = f"{several(windows, 'step')}, synchronisations per step: {', '.join(map(str, sorted(counts)))}"
    return Judged(
        name=CHECK,
        findings=[*(findings if not blind else []), *leftovers],
        seen=seen,
        detail=text if seen else " ".join(hidden) or "No optimizer step was seen.",
        hidden=hidden,
    )


def _cells(run: Run) -> Iterator[CellRecord]:
    for steps in run.steps.values():
        for step in steps:
            for record in step.ranks.values():
                yield from record.cells


def _without_engine(run: Run, leftovers: Sequence[Finding]) -> Judged:
    totals = run.first.totals if run.first else None
    counts = totals.counts if totals else {}
    calls = sum(count for name, count in counts.items() if name.startswith(REDUCING))
    steps = sum(run.steps_done(number) for number in run.steps)
    found = compare(run, "gradients")
    agree = found.tensors > 0 and not found.differences
    findings = list(leftovers)
    if steps and totals and (not calls or found.differences):
        number = run.main_optimizer or 0
        findings.append(_unsynchronised(run, run.steps.get(number, []), steps, steps, calls))
    hidden = (
        ["The script or its engine reduces gradients by itself: which calls do so is not visible."] if calls else []
    )
    detail = (
        f"{several(found.moments, 'step')} with equal gradients on all ranks, {several(calls, 'collective')} in all"
    )
    return Judged(
        name=CHECK,
        findings=findings,
        seen=agree,
        detail=detail if agree else " ".join(hidden) or ("" if steps else "No optimizer step was seen."),
        hidden=hidden,
    )


def _findings(run: Run, optimizer: int) -> Iterator[Finding]:
    steps = run.steps[optimizer]
    total = run.steps_done(optimizer)
    found: dict[str, list[tuple[Step, Syncs]]] = {}
    for step in steps:
        each = [of_window(run, record) for record in step.ranks.values() if record.cells]
        if not each:
            continue
        worst = max(each, key=lambda one: one.count)
        if any(one.count == 0 for one in each):
            found.setdefault("unsynchronised_step", []).append((step, worst))
        elif not all(one.at_last for one in each):
            found.setdefault("sync_on_wrong_microbatch", []).append((step, worst))
        elif worst.count > 1:
            found.setdefault("extra_syncs", []).append((step, worst))
    counts = dict(per_step(run, optimizer)) if _patterns_tell(run) else {}
    if "unsynchronised_step" in found:
        windows = counts.get(0, 0) or len(found["unsynchronised_step"])
        yield _unsynchronised(run, [step for step, _ in found["unsynchronised_step"]], windows, total, None)
    if "sync_on_wrong_microbatch" in found:
        yield _wrong_micro_batch(run, [step for step, _ in found["sync_on_wrong_microbatch"]], len(steps))
    if "extra_syncs" in found:
        windows = sum(count for syncs, count in counts.items() if syncs > 1) or len(found["extra_syncs"])
        yield _extra(run, found["extra_syncs"], max(windows, len(found["extra_syncs"])), total)


def _where(run: Run, steps: Sequence[Step]) -> list[tuple[str, int]]:
    if not steps or run.first is None:
        return []
    record = steps[0].ranks.get(run.first.rank)
    return places(run.first, [cell.place for cell in record.cells]) if record else []


def _unsynchronised(run: Run, steps: Sequence[Step], windows: int, total: int, calls: int | None) -> Finding:
    first = steps[0].step if steps else 1
    about = (
        "no gradients were reduced between the backward passes and the step"
        if calls is None
        else f"the gradients of the ranks were not brought together ({several(calls, 'collective')} seen in all)"
    )
    return Finding(
        name="unsynchronised_step",
        severity="wrong",
        check=CHECK,
        detail=(
            f"In {several(windows, 'step')} of {total:,}, first in step {first:,}, {about}: every rank "
            "trains by itself."
        ),
        windows=windows,
        places=_where(run, steps),
        measured={"syncs_per_step": 0, "step": first, "windows": windows, "steps": total},
        suggestion=(
            "Run the forward of the last micro-batch through the DDP module and outside no_sync()."
            if run.engine == "ddp"
            else "Wrap the model in DistributedDataParallel, or average the gradients over the ranks before the step."
        ),
    )


def _wrong_micro_batch(run: Run, steps: Sequence[Step], looked_at: int) -> Finding:
    first = steps[0]
    record = next(iter(first.ranks.values()))
    synced = [place + 1 for place, cell in enumerate(record.cells) if run.synchronised(cell)]
    return Finding(
        name="sync_on_wrong_microbatch",
        severity="wrong",
        check=CHECK,
        detail=(
            f"In {several(len(steps), 'window')} of {looked_at:,} looked at, gradients are reduced with micro-batch "
            f"{max(synced, default=0)} of {len(record.cells)}, not with the last one (step {first.step:,}): what comes "
            "after it enters each rank's own gradient alone."
        ),
        windows=len(steps),
        places=_where(run, steps),
        measured={"synchronised": synced, "micro_batches": len(record.cells), "step": first.step},
        suggestion="Leave no_sync() for the last micro-batch of the window, the one before optimizer.step().",
    )


def _extra(run: Run, found: Sequence[tuple[Step, Syncs]], windows: int, total: int) -> Finding:
    step, syncs = max(found, key=lambda item: item[1].count)
    outside = (
        f" {several(syncs.outside, 'forward')} ran outside no_sync() and the backward inside: the forward decides."
        if syncs.outside
        else ""
    )
    return Finding(
        name="extra_syncs",
        severity="waste",
        check=CHECK,
        detail=(
            f"{syncs.count} synchronisations per step where 1 is enough, with {step.micro_batches} micro-batches, in "
            f"{several(windows, 'step')} of {total:,}.{outside}"
        ),
        windows=windows,
        places=_where(run, [step]),
        measured={
            "syncs_per_step": syncs.count,
            "micro_batches": step.micro_batches,
            "forwards_outside_no_sync": syncs.outside,
            "steps": total,
        },
        suggestion="Put forward and backward of every micro-batch but the last inside `with model.no_sync():`.",
    )


def _leftovers(run: Run) -> Iterator[Finding]:
    for optimizer, steps in run.steps.items():
        mixed = [step for step in steps if run.epochs.straddles(step)]
        totals = run.totals(optimizer)
        ended = run.first is not None and run.first.ended
        # With several optimizers, what is left may be another one's, cleared at its next step.
        left = totals.open_cells if totals and ended and len(run.optimizers) == 1 else 0
        if mixed:
            yield _mixed(run, optimizer, mixed, left)
        elif left and totals:
            yield Finding(
                name="leftover_microbatches",
                severity="note",
                check=CHECK,
                detail=(
                    f"The last {several(left, 'micro-batch')} came after the last of {several(totals.steps, 'step')}: "
                    "no step uses their gradients."
                ),
                places=_where(run, steps[-1:]),
                measured={"micro_batches": left, "at": "end"},
                suggestion="Make a step with the last micro-batch of the data too, divided by how many there are.",
            )


def _mixed(run: Run, optimizer: int, steps: Sequence[Step], left: int) -> Finding:
    rank = run.first.rank if run.first else 0
    usual = run.usual_micro_batches(optimizer)
    records = [step.ranks[rank] for step in steps]
    # Windows that run on across epochs, as over an endless loader, have the usual number of micro-batches.
    odd = [record for record in records if record.micro_batches != usual or any(cell.cleared for cell in record.cells)]
    record = (odd or records)[0]
    dropped = sum(cell.cleared for cell in record.cells)
    fate = (
        f"{several(dropped, 'micro-batch')} of them cleared without a step" if dropped else "their gradients are added"
    )
    return Finding(
        name="leftover_microbatches",
        severity="wrong" if odd else "note",
        check=CHECK,
        detail=(
            f"Micro-batches left over at the end of an epoch are carried into the next one in "
            f"{several(len(steps), 'window')}: step {record.step:,} has {len(record.cells)} micro-batches of two "
            f"epochs, {fate}."
        ),
        windows=len(steps),
        places=_where(run, steps),
        measured={"micro_batches": len(record.cells), "cleared": dropped, "step": record.step, "open_at_end": left},
        suggestion="Make a step at the end of every epoch, divided by the micro-batches that the window has.",
    )
