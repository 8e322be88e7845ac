"""The ranks as the run page shows them: all of a small run; of a large one its nodes and the most urgent ranks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from app.formats import many
from app.runs.documents import Rank

MOST_ROWS: Final = 64
"""Runs with more ranks are shown by node."""
WORST_ROWS: Final = 16
MOST_NODES: Final = 64
PAGE_ROWS: Final = 256
"""Ranks on one page of all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """The ranks of one node."""

    name: str
    ranks: str
    count: int
    phases: str
    steps: str
    last_seen: str | None
    """Of the rank that was silent for longest."""
    problems: str
    """Stalled ranks, ranks that ended with an error, malformed lines; empty if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksView:
    """What the run page shows of the ranks."""

    rows: list[Rank]
    """All ranks, or those that need attention first."""
    nodes: list[NodeRow]
    """Empty for a run whose ranks are all shown; those with problems come first."""
    node_count: int
    total: int

    @property
    def grouped(self) -> bool:
        """Whether only some ranks are shown."""
        return len(self.rows) < self.total


def ranks_view(ranks: Sequence[Rank]) -> RanksView:
    """Return the ranks of a run, grouped by node if there are many."""
    if len(ranks) <= MOST_ROWS:
        return RanksView(rows=list(ranks), nodes=[], node_count=0, total=len(ranks))
    by_node = groupby(sorted(ranks, key=node_of), key=node_of)
    nodes = [_node_row(name, sorted(found, key=lambda rank: rank.rank)) for name, found in by_node]
    nodes.sort(key=lambda row: not row.problems)
    return RanksView(
        rows=sorted(ranks, key=_urgency)[:WORST_ROWS], nodes=nodes[:MOST_NODES], node_count=len(nodes), total=len(ranks)
    )


def node_of(rank: Rank) -> str:
    """Return the name of a rank's node."""
    return rank.node or rank.host or "unknown"


def _failed(rank: Rank) -> bool:
    return bool(rank.signal or rank.exit_code)


def _urgency(rank: Rank) -> tuple[bool, bool, bool, int, str, int]:
    """Return the key by which the ranks that need attention come first: ended badly, stalled, behind, silent."""
    step = -1 if rank.step is None else rank.step
    return not _failed(rank), not rank.stalled, not rank.malformed, step, rank.last_seen or "", rank.rank


def _node_row(name: str, ranks: Sequence[Rank]) -> NodeRow:
    steps = [rank.step for rank in ranks if rank.step is not None]
    low, high = min(steps, default=None), max(steps, default=None)
    counts = {
        "with errors": sum(map(_failed, ranks)),
        "stalled": sum(rank.stalled for rank in ranks),
        "with malformed lines": sum(bool(rank.malformed) for rank in ranks),
    }
    phases = Counter(rank.phase for rank in ranks if rank.phase)
    return NodeRow(
        name=name,
        ranks=spans([rank.rank for rank in ranks]),
        count=len(ranks),
        phases=", ".join(phase if len(phases) == 1 else f"{phase} ({count})" for phase, count in phases.most_common(3)),
        steps="" if low is None else f"{low:,}" if low == high else f"{low:,} to {high:,}",
        last_seen=min((rank.last_seen for rank in ranks if rank.last_seen), default=None),
        problems=", ".join(f"{many(count, 'rank')} {words}" for words, count in counts.items() if count),
    )


def spans(numbers: Sequence[int]) -> str:
    """Return increasing numbers with ranges, such as `0 to 7, 16`, at most four of them."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    shown = [f"{low} to {high}" if high > low else f"{low}" for low, high in found[:4]]
    return ", ".join([*shown, "…"] if len(found) > len(shown) else shown)
