"""Check `rank_symmetry`: whether all ranks make the same steps and forwards."""

from collections.abc import Iterator

from trainer.kinds.trace.judge.findings import Finding, Judged, listed, places, several
from trainer.kinds.trace.judge.records import CellRecord, SkippedRecord
from trainer.kinds.trace.judge.runs import Run

CHECK = "rank_symmetry"


def judge(run: Run) -> Judged:
    """Compare the counts of all ranks; left out with a single rank."""
    if run.world_size < 2:
        return Judged.left_out(CHECK)
    ended = [rank for rank in run.trace.ranks if rank.ended]
    whole = len(ended) == run.world_size and bool(run.steps)
    findings = [*_skipped(run), *(_unequal(run) if whole else [])]
    steps = sum(run.steps_done(number) for number in run.steps)
    detail = f"{several(steps, 'step')} on each of {run.world_size:,} ranks"
    missing = "Counts of all ranks can be compared only when every rank reaches its end."
    return Judged(
        name=CHECK,
        findings=findings,
        seen=whole,
        detail=detail if whole else missing,
        hidden=[] if whole or not run.steps else [missing],
    )


def _unequal(run: Run) -> Iterator[Finding]:
    for number in run.steps:
        steps = {rank.rank: totals.steps if (totals := run.totals(number, rank)) else 0 for rank in run.trace.ranks}
        if len(set(steps.values())) > 1:
            yield _finding(run, "unequal_steps", f"steps of optimizer {number}", steps)
    for model in run.models:
        name = f"forwards of model {model}"
        counts = {rank.rank: rank.totals.counts.get(name, 0) if rank.totals else 0 for rank in run.trace.ranks}
        if len(set(counts.values())) > 1:
            yield _finding(run, "unequal_forwards", name, counts)


SUGGESTIONS = {
    "unequal_steps": "Give every rank the same number of batches: drop_last, a padding sampler, or model.join().",
    "unequal_forwards": "Run every training forward on all ranks, or model.module for what one rank computes alone.",
    "skipped_on_one_rank": (
        "Let all ranks decide together: check synchronised gradients for overflow, or all-reduce the outcome."
    ),
}


def _finding(run: Run, name: str, what: str, counts: dict[int, int]) -> Finding:
    low, high = min(counts.values()), max(counts.values())
    fewest = [rank for rank, count in counts.items() if count == low]
    return Finding(
        name=name,
        severity="wrong",
        check=CHECK,
        detail=f"The {what} differ: {low:,} on rank {listed(fewest)}, up to {high:,} on others.",
        places=_where(run),
        measured={"least": low, "most": high, "ranks_with_least": fewest[:20]},
        suggestion=SUGGESTIONS[name],
    )


def _where(run: Run) -> list[tuple[str, int]]:
    cells: list[CellRecord] = []
    for number in [run.main_optimizer] if run.main_optimizer is not None else []:
        first = run.steps[number][0].ranks.get(run.first.rank) if run.first else None
        cells = list(first.cells) if first else []
    return places(run.first, [cell.place for cell in cells])


def _skipped(run: Run) -> Iterator[Finding]:
    for number in run.steps:
        mine = {
            rank.rank: sorted(item.step for item in rank.all(SkippedRecord) if item.optimizer == number)
            for rank in run.trace.ranks
        }
        if len(mine) > 1 and len({tuple(steps) for steps in mine.values()}) > 1:
            counts = {rank: len(steps) for rank, steps in mine.items()}
            first = min(step for steps in mine.values() for step in steps)
            where = [rank for rank, steps in mine.items() if first in steps]
            yield Finding(
                name="skipped_on_one_rank",
                severity="wrong",
                check=CHECK,
                detail=(
                    f"A GradScaler leaves out the step after step {first:,} on rank {listed(where)} and not on the "
                    f"others; steps left out per rank: {listed(list(counts.values()))}."
                ),
                windows=max(counts.values()),
                places=_where(run),
                measured={"skipped": {str(rank): count for rank, count in list(counts.items())[:64]}},
                suggestion=SUGGESTIONS["skipped_on_one_rank"],
            )
