"""The timeline of the first windows: what every rank did when."""

from collections.abc import Iterator

from trainer.contract.result import TimelineLane, TimelinePanel, TimelineSpan
from trainer.kinds.trace.judge.records import WindowRecord
from trainer.kinds.trace.judge.runs import Run, Step

TITLE = "First windows, drawn to time"
WINDOWS = 3
MOST_LANES = 16
MOST_SPANS = 1500


def panel(run: Run) -> TimelinePanel | None:
    """Return forward, backward, synchronisation and step of the first windows; None where none was looked at."""
    optimizer = run.main_optimizer
    # The first window pays for what is done once; the ones after it show the usual step.
    steps = run.steps.get(optimizer, [])[: WINDOWS + 1] if optimizer is not None else []
    steps = _consecutive(steps[1:] if len(steps) > WINDOWS else steps)
    ranks = sorted({rank for step in steps for rank in step.ranks})
    shown = ranks[:MOST_LANES]
    origin = min((record.t[0] for step in steps for record in step.ranks.values()), default=0.0)
    lanes = []
    left = MOST_SPANS
    for rank in shown:
        records = [(step.step, step.ranks[rank]) for step in steps if rank in step.ranks]
        spans = [span for number, record in records for span in _spans(number, record, origin)][: max(0, left)]
        left -= len(spans)
        lanes.append(TimelineLane(name=f"rank {rank}", spans=spans))
    if not any(lane.spans for lane in lanes):
        return None
    more = f" The first {len(shown)} of {len(ranks)} ranks." if len(ranks) > len(shown) else ""
    return TimelinePanel(
        title=TITLE,
        note=(
            f"Steps {steps[0].step:,} to {steps[-1].step:,}, in milliseconds by each rank's own clock. "
            f"Synchronisations are drawn below the backward that they belong to.{more}"
        ),
        unit="ms",
        lanes=lanes,
    )


def _consecutive(steps: list[Step]) -> list[Step]:
    """Return the first windows that follow one another without a gap."""
    kept = steps[:1]
    for step in steps[1:]:
        if step.step != kept[-1].step + 1:
            break
        kept.append(step)
    return kept


def _spans(step: int, record: WindowRecord, origin: float) -> Iterator[TimelineSpan]:
    for place, cell in enumerate(record.cells):
        label = f"step {step}, micro-batch {place + 1}"
        if cell.forward:
            yield _span("forward", cell.forward, origin, label)
        yield _span("backward", cell.backward, origin, label)
        for span in cell.sync_spans:
            yield _span("sync", span, origin, label)
    yield _span("step", record.step_at, origin, f"step {step}")


def _span(kind: str, span: tuple[float, float], origin: float, label: str) -> TimelineSpan:
    begin, end = (round(1000 * (moment - origin), 3) for moment in span)
    return TimelineSpan(kind=kind, begin=begin, end=max(begin, end), label=label)
