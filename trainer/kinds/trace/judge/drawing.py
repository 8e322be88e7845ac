"""Which samples all ranks drew in one pass over a loader, side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.kinds.trace.judge.reading import Ids, RankTrace
from trainer.kinds.trace.judge.records import DrawnRecord, LoaderRecord
from trainer.kinds.trace.judge.runs import Run

LARGEST_LENGTH = 1 << 24
"""Of a data set whose samples are counted one by one."""


@dataclass(frozen=True)
class Pass:
    """One pass of all ranks over the loader with the same number."""

    loader: LoaderRecord
    """Of the lowest rank."""
    loaders: Sequence[LoaderRecord]
    number: int
    drawn: Sequence[DrawnRecord]
    """One per rank, in order of rank."""
    ids: Sequence[Ids]
    """Indices by rank; empty where they are not visible."""
    training: bool

    @property
    def complete(self) -> bool:
        """Whether every rank drew to the end."""
        return all(item.complete for item in self.drawn)

    @property
    def length(self) -> int:
        """Samples of the data set; 0 where that is not known, or the ranks differ."""
        lengths = {item.length for item in self.loaders}
        length = self.loader.length if len(lengths) == 1 else None
        return length if length is not None and length <= LARGEST_LENGTH else 0

    @property
    def sharded(self) -> bool:
        """Whether a sampler or a batch sampler gives every rank its own part."""
        name = f"{self.loader.sampler} {self.loader.batch_sampler}"
        return self.loader.replicas is not None or "Shard" in name or "Distributed" in name

    @property
    def own_parts(self) -> bool | None:
        """Whether the data set is another part of the data on every rank; None where that is not known."""
        parts = [item.part for item in self.loaders]
        if None in parts:
            return None
        return len(set(parts)) == len(parts) > 1

    @property
    def drawn_on_purpose(self) -> bool:
        """Whether the sampler draws with replacement or by weight, so that repeated samples are meant."""
        return "Weighted" in (self.loader.sampler or "")

    @property
    def counts(self) -> Ids:
        """How often each sample of the data set was drawn by all ranks; only for ids inside it."""
        whole = np.concatenate([*self.ids, np.empty(0, dtype=np.int64)])
        inside = whole[(whole >= 0) & (whole < self.length)]
        return np.bincount(inside, minlength=self.length).astype(np.int64)

    @property
    def overlaps_by_itself(self) -> bool:
        """Whether ranks draw the same indices although nothing that is known shards the data."""
        return len(self.ids) > 1 and not self.sharded and bool(self.length) and int(self.counts.max(initial=0)) > 1

    @property
    def in_range(self) -> bool:
        """Whether every id is one of the data set's."""
        return all(bool(((one >= 0) & (one < self.length)).all()) for one in self.ids)

    @property
    def tail(self) -> int:
        """Samples by which rounding to whole batches on all ranks may be off."""
        return len(self.ids) * max(1, self.loader.batch_size or 1)


def passes(run: Run) -> Iterator[Pass]:
    """Yield the passes that every rank finished, in the order of the lowest rank."""
    ranks = run.trace.ranks
    if not run.trace.whole:
        return
    loaders = [{item.loader: item for item in rank.all(LoaderRecord)} for rank in ranks]
    drawn = [{(item.loader, item.number): item for item in rank.all(DrawnRecord)} for rank in ranks]
    for key in drawn[0]:
        if all(key in mine for mine in drawn) and all(key[0] in mine for mine in loaders):
            records = [mine[key] for mine in drawn]
            yield Pass(
                loader=loaders[0][key[0]],
                loaders=[mine[key[0]] for mine in loaders],
                number=key[1],
                drawn=records,
                ids=[] if any(mine[key[0]].iterable for mine in loaders) else _ids(ranks, records),
                training=key[0] in run.epochs.training,
            )


def _ids(ranks: Sequence[RankTrace], records: Sequence[DrawnRecord]) -> list[Ids]:
    found = [rank.ids(record) for rank, record in zip(ranks, records, strict=True)]
    known = [item for item in found if item is not None]
    return known if len(known) == len(found) else []
