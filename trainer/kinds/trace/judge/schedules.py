"""Check `schedule`: whether learning rate schedulers step at most once per optimizer step."""

from collections.abc import Iterator

from trainer.kinds.trace.judge.findings import Finding, Judged, several
from trainer.kinds.trace.judge.runs import Run

CHECK = "schedule"
INSIDE = "With gradient accumulation, call scheduler.step() once, right after optimizer.step()."
SEVERAL = (
    "Call scheduler.step() once per optimizer step. Accelerate's prepared scheduler makes one step per process on "
    "purpose: its schedule has to be that many times longer."
)


def judge(run: Run) -> Judged:
    """Compare the steps of schedulers with those of their optimizers; left out where no scheduler was seen."""
    counted = {number: _counts(run, number) for number in run.steps}
    seen = {number: counts for number, counts in counted.items() if counts[0]}
    if not seen:
        return Judged.left_out(CHECK)
    number, (steps, _) = next(iter(seen.items()))
    return Judged(
        name=CHECK,
        findings=list(_findings(run, seen)),
        seen=True,
        detail=f"{several(steps, 'scheduler step')} in {several(_updates(run, number), 'optimizer step')}",
        hidden=[],
    )


def _counts(run: Run, optimizer: int) -> tuple[int, int]:
    """Return the scheduler steps of the first rank, and how many of them were in an open window."""
    totals = run.first.totals if run.first else None
    counts = totals.counts if totals else {}
    names = (f"scheduler steps of optimizer {optimizer}", f"scheduler steps in open windows of optimizer {optimizer}")
    return counts.get(names[0], 0), counts.get(names[1], 0)


def _updates(run: Run, optimizer: int) -> int:
    totals = run.totals(optimizer)
    return run.steps_done(optimizer) + (totals.skipped if totals else 0)


def _findings(run: Run, seen: dict[int, tuple[int, int]]) -> Iterator[Finding]:
    for number, (steps, inside) in seen.items():
        updates = _updates(run, number)
        if steps <= updates + 1:
            continue
        open_ = inside > updates
        where = ", between the backward passes of a window" if open_ else ", several times in a row"
        yield Finding(
            name="scheduler_steps",
            severity="wrong" if open_ else "note",
            check=CHECK,
            detail=(
                f"The learning rate scheduler made {steps:,} steps in {several(updates, 'optimizer step')}{where}: the "
                f"schedule ends {steps / max(1, updates):.3g} times too early."
            ),
            measured={"scheduler_steps": steps, "optimizer_steps": updates, "in_open_windows": inside},
            suggestion=INSIDE if open_ else SEVERAL,
        )
