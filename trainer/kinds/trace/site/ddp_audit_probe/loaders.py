"""Which samples each rank draws: the indices a DataLoader asks its sampler for, pass by pass."""

from __future__ import annotations

import array
import hashlib
import os
import time
import weakref
from typing import Any, Callable

from .core import Core
from .guard import replace

MOST_IDS = 1_000_000
"""Of one pass; of a longer one only the number is known beyond."""
MOST_PASSES = 6
"""Of one loader whose ids are kept."""
MOST_BYTES = 64 << 20
"""Of all ids of one rank."""
MOST_RECORDED = 20_000
"""Passes that are recorded; a script that asks for one batch at a time makes one pass an update."""


class Pass:
    """One iteration over a loader."""

    def __init__(self, loader: int, number: int) -> None:
        self.loader, self.number = loader, number
        self.keeps = number < MOST_PASSES
        """Whether its ids are kept, or only counted."""
        self.ids = array.array("q")
        self.count = self.batches = 0
        self.odd = False
        """Whether a sampler returned something other than a number."""
        self.over = False
        self.training = False

    def take(self, index: Any) -> None:
        """Take in what the sampler gave: one index or a batch of them."""
        self.batches += 1
        if hasattr(index, "tolist"):  # of a batch sampler that yields arrays or tensors
            index = index.tolist()
        drawn = index if isinstance(index, (list, tuple)) else [index]
        self.count += len(drawn)
        if not self.keeps or len(self.ids) >= MOST_IDS:
            return
        try:
            self.ids.extend(drawn)
            del self.ids[MOST_IDS:]
        except (TypeError, ValueError, OverflowError):
            self.odd, self.keeps = True, False
            self.forget()

    def forget(self) -> None:
        """Let the ids go; they are written, or never will be."""
        self.ids = array.array("q")


class Loaders:
    """Watches `torch.utils.data.DataLoader` and `DistributedSampler`."""

    def __init__(self, core: Core, at_epoch_end: Callable[[], None]) -> None:
        self.core, self._at_epoch_end = core, at_epoch_end
        self._loaders: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._passes: dict[int, int] = {}
        self._open: weakref.WeakKeyDictionary[Any, Pass] = weakref.WeakKeyDictionary()
        self._ends: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        """Iterator -> what ends its newest pass when it goes."""
        self._written = self._recorded = 0

    def install(self) -> None:
        """Wrap the iteration over loaders."""
        data = self.core.torch.utils.data
        replace(data.DataLoader, "__iter__", self._iter)
        # The one place through which every index goes, in the main process, whatever the number of workers.
        base = data.dataloader._BaseDataLoaderIter
        if replace(base, "_next_index", self._next_index) is None:
            self.core.guard.off["loaders"] = "this torch draws its indices elsewhere"

    def _iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        core = self.core

        def iterate(loader: Any) -> Any:
            if not core.mine:
                return original(loader)
            found = core.guard.run("loaders", self._begin, loader)
            iterator = original(loader)
            if found is not None:
                core.guard.run("loaders", self._attach, iterator, found, loader)
            return iterator

        return iterate

    def _begin(self, loader: Any) -> Pass:
        core = self.core
        number = self._loaders.get(loader)
        if number is None:
            number = self._loaders[loader] = core.number("loader")
            if number < MOST_RECORDED:
                core.record("loader", loader=number, **self._described(loader))
            weakref.finalize(loader, self._passes.pop, number, None).atexit = False
        lasting = getattr(loader, "_iterator", None)  # with persistent workers, one iterator makes every pass
        before = self._open.pop(lasting, None) if lasting is not None else None
        if before is not None:
            self._end(before)
        count = self._passes.get(number, 0)
        self._passes[number] = count + 1
        if count:
            self._at_epoch_end()
        return Pass(number, count)

    def _attach(self, iterator: Any, found: Pass, loader: Any) -> None:
        early = self._open.get(iterator)  # a loader with workers draws ahead while its iterator is made
        if early is not None and early.number < 0:
            found.count, found.batches, found.odd = early.count, early.batches, early.odd
            found.keeps = found.keeps and early.keeps
            if found.keeps:
                found.ids = early.ids
        self._open[iterator] = found
        self._recorded += 1
        if self._recorded > MOST_RECORDED:
            self.core.miss("pass over a loader beyond the most that are recorded")
            found.over = True
            found.forget()
            return
        sampler = _distributed(loader)
        self.core.record(
            "pass",
            loader=found.loader,
            number=found.number,
            epoch=getattr(sampler, "epoch", None),
            base_seed=getattr(iterator, "_base_seed", None),
            t=time.time(),
        )
        ended = self._ends.pop(iterator, None)
        if ended is not None:
            ended.detach()  # else every pass would live as long as an iterator that makes many
        self._ends[iterator] = weakref.finalize(iterator, self.core.guard.wrapped("loaders", self._end), found)

    def _described(self, loader: Any) -> dict[str, Any]:
        data = self.core.torch.utils.data
        dataset, sampler = loader.dataset, _distributed(loader)
        iterable = isinstance(dataset, data.IterableDataset)
        return {
            "site": self.core.site("DataLoader", 5),
            "dataset": type(dataset).__name__,
            "iterable": iterable,
            "length": None if iterable else _length(dataset),
            "part": self.core.guard.run("parts", _part, data, dataset),
            "own_generator": loader.generator is not None,
            "batch_size": loader.batch_size,
            "drop_last": bool(getattr(loader, "drop_last", False)),
            "workers": loader.num_workers,
            "sampler": type(loader.sampler).__name__ if not iterable else None,
            "batch_sampler": type(loader.batch_sampler).__name__ if loader.batch_sampler is not None else None,
            "replicas": getattr(sampler, "num_replicas", None),
            "sampler_rank": getattr(sampler, "rank", None),
            "shuffle": _shuffles(loader, sampler),
            "sampler_drop_last": getattr(sampler, "drop_last", None),
        }

    def _next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        core = self.core

        def next_index(iterator: Any) -> Any:
            try:
                index = original(iterator)
            except StopIteration:
                if core.mine:
                    core.guard.run("loaders", self._ran_out, iterator)
                raise
            if core.mine:
                core.guard.run("loaders", self._drawn, iterator, index)
            return index

        return next_index

    def _drawn(self, iterator: Any, index: Any) -> None:
        found = self._open.get(iterator)
        if found is None:  # drawn while the iterator is being made
            found = self._open[iterator] = Pass(-1, -1)
        if not found.over:
            found.take(index)

    def _ran_out(self, iterator: Any) -> None:
        found = self._open.get(iterator)
        if found is not None and not found.over:
            self._end(found, complete=True)

    def _end(self, found: Pass, complete: bool = False) -> None:
        if found.over:
            return
        found.over = True
        core = self.core
        place: int | None = None
        data = found.ids.tobytes()
        if core.files is not None and found.number < MOST_PASSES and self._written + len(data) <= MOST_BYTES:
            path = os.path.join(core.files.folder, f"rank{core.files.rank}.ids")
            with open(path, "ab") as handle:
                place = handle.tell()
                handle.write(data)
            self._written += len(data)
        kept = len(found.ids) if place is not None else 0
        found.forget()
        core.record(
            "drawn",
            loader=found.loader,
            number=found.number,
            complete=complete,
            count=found.count,
            batches=found.batches,
            odd=found.odd,
            t=time.time(),
            place=place,
            kept=kept,
        )

    def finish(self) -> None:
        """Record the passes that are still open."""
        for found in list(self._open.values()):
            self._end(found)


def _distributed(loader: Any) -> Any:
    """Return the sampler that shards, however deep it sits in batch samplers."""
    seen = [getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    for _ in range(4):
        for item in seen:
            if hasattr(item, "num_replicas") and hasattr(item, "rank"):
                return item
        inner = [
            (getattr(item, "sampler", None), getattr(item, "batch_sampler", None)) for item in seen if item is not None
        ]
        seen = [item for pair in inner for item in pair]
    return None


def _shuffles(loader: Any, sampler: Any) -> bool | None:
    if sampler is not None:
        found = getattr(sampler, "shuffle", None)
        return None if found is None else bool(found)
    return {"RandomSampler": True, "SequentialSampler": False}.get(type(getattr(loader, "sampler", None)).__name__)


def _part(data: Any, dataset: Any) -> str | None:
    """Return a digest of which part of another data set this one is, None when it is not a `Subset`."""
    if not isinstance(dataset, data.Subset):
        return None
    indices = array.array("q", (int(index) for index in dataset.indices[:MOST_IDS]))
    return hashlib.blake2b(indices.tobytes(), digest_size=8).hexdigest()


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None
