"""Check `coverage`: what was seen and what was not, so that nothing passes unseen."""

from collections.abc import Iterator, Sequence
from typing import Any

from trainer.kinds.trace.judge.findings import Judged, listed, several
from trainer.kinds.trace.judge.runs import Run

CHECK = "coverage"


def document(run: Run, judged: Sequence[Judged]) -> dict[str, Any]:
    """Return what was looked at, as the summary has it."""
    trace = run.trace
    totals = [rank.totals for rank in trace.ranks]
    unseen: dict[str, int] = {}
    for item in totals:
        for name, count in (item.unseen if item else {}).items():
            unseen[name] = unseen.get(name, 0) + count
    return {
        "ranks": len(trace.ranks),
        "missing_ranks": trace.missing,
        "restart": trace.restart,
        "earlier_starts": trace.earlier,
        "windows_looked_at": sum(len(steps) for steps in run.steps.values()),
        "steps": {str(number): run.steps_done(number) for number in run.steps},
        "unseen": dict(sorted(unseen.items())[:100]),
        "probes_off": off(run),
        "malformed_lines": sum(rank.malformed for rank in trace.ranks),
        "torn_files": sum(rank.torn for rank in trace.ranks),
        "bytes_not_read": sum(rank.unread for rank in trace.ranks),
        "foreign_files": trace.strangers,
        "records_dropped": sum(item.dropped for item in totals if item),
        "ranks_without_end": [rank.rank for rank in trace.ranks if not rank.ended][:100],
        "probe_seconds": max((item.probe_seconds for item in totals if item), default=0.0),
        "judged": [item.name for item in judged if item.seen],
        "not_judged": [item.name for item in judged if not item.seen and not item.absent],
        "not_applicable": [item.name for item in judged if item.absent],
        "not_seen": sentences(run, judged),
    }


def off(run: Run) -> dict[str, str]:
    """Return the probes that were switched off on any rank, with the last line of the reason."""
    found: dict[str, str] = {}
    for rank in run.trace.ranks:
        for name, why in (rank.totals.off if rank.totals else {}).items():
            found.setdefault(name, (why.strip().splitlines() or [""])[-1][:300])
    return found


def judge(run: Run, others: Sequence[Judged]) -> Judged:
    """Judge whether the ranks were seen at all and whole; what single checks missed is in their own words."""
    problems = list(_problems(run))
    looked_at = sum(len(steps) for steps in run.steps.values())
    seen = f"{several(len(run.trace.ranks), 'rank')}, {several(looked_at, 'window')} looked at, engine {run.engine}"
    missed = " ".join(dict.fromkeys(text for item in others for text in item.hidden))
    return Judged(
        name=CHECK, seen=not problems, detail=" ".join([f"{seen}.", *problems, missed]).strip(), hidden=problems
    )


def sentences(run: Run, judged: Sequence[Judged]) -> list[str]:
    """Return everything that was not seen, a sentence each."""
    found = [*_problems(run), *(text for item in judged for text in item.hidden if item.name != CHECK), *_notes(run)]
    return list(dict.fromkeys(found))


def _problems(run: Run) -> Iterator[str]:
    trace = run.trace
    if not trace.ranks:
        yield (
            "No rank left records: no process of the command joined a process group with torch.distributed, or Python "
            "was started with -I, -E or -S and ignored PYTHONPATH, which brings the probe in."
        )
        return
    if trace.missing:
        missing = run.world_size - len(trace.ranks)
        yield f"{several(missing, 'rank')} of {run.world_size:,} left no records: rank {listed(trace.missing)}."
    if not any(run.steps.values()):
        yield "No optimizer step was seen."
    for name, why in off(run).items():
        yield f"The probe {name!r} was switched off: {why}"
    if any(rank.malformed for rank in trace.ranks):
        yield f"{several(sum(rank.malformed for rank in trace.ranks), 'line')} of the records could not be read."
    unread = sum(rank.unread for rank in trace.ranks)
    if unread:
        yield f"{unread:,} bytes of records exceed what is read."
    if trace.strangers:
        yield f"{several(trace.strangers, 'file')} could not be read as the records of the rank in the file name."


def _notes(run: Run) -> Iterator[str]:
    trace = run.trace
    if trace.earlier:
        yield f"{several(trace.earlier, 'earlier start')} of the ranks before restart {trace.restart} not judged."
    ended = [rank.rank for rank in trace.ranks if not rank.ended]
    if ended:
        yield f"Rank {listed(ended)} ended without last words: what happened after its newest records is not known."
    dropped = sum(rank.totals.dropped for rank in trace.ranks if rank.totals)
    if dropped:
        yield f"{several(dropped, 'record')} had no room on disk."
    if run.exit_code:
        yield f"The command ended with exit code {run.exit_code}: only what happened before is judged."
