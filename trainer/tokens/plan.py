"""Which sequences every rank sees in every micro-batch, as a resumable stream; standard library only."""

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.tokens.corpus import POOL_SIZE, build_corpus

PLAN_RULE = "window/1: per rank a sample without replacement from its own pool, ranks in order, generator seed + 10"
SEED_OFFSET = 10

Window = list[list[list[int]]]
"""ids[rank][micro-batch][position in the batch]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanShape:
    """Everything a plan depends on."""

    seed: int
    world_size: int
    accumulation: int
    """Micro-batches per rank and window."""
    batch_size: int
    """Sequences per rank and micro-batch."""


class WindowSampler:
    """Draws windows one after another; every rank draws the whole window, so all agree without communication.

    No id occurs twice in a window, but ids may recur in later windows, so a plan is counted in updates, not in epochs.
    """

    def __init__(self, shape: PlanShape) -> None:
        self.shape = shape
        self.position = 0
        """Number of windows drawn so far."""
        self._generator = random.Random(shape.seed + SEED_OFFSET)

    def next_window(self) -> Window:
        """Return the ids of the next window. Raises ValueError if a pool is smaller than the window."""
        self.position += 1
        return [self._rank_window(rank) for rank in range(self.shape.world_size)]

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs, as JSON values."""
        version, internal, gauss = self._generator.getstate()
        return {"position": self.position, "version": version, "internal": list(internal), "gauss": gauss}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state` was taken. Raises KeyError, TypeError or ValueError for an invalid state."""
        self._generator.setstate((state["version"], tuple(state["internal"]), state["gauss"]))
        self.position = int(state["position"])

    def _rank_window(self, rank: int) -> list[list[int]]:
        shape = self.shape
        drawn = self._generator.sample(range(POOL_SIZE), shape.accumulation * shape.batch_size)
        ids = [rank * POOL_SIZE + place for place in drawn]
        return [ids[start : start + shape.batch_size] for start in range(0, len(ids), shape.batch_size)]


def token_counts(window: Window, shape: PlanShape) -> list[list[int]]:
    """Return the supervised tokens of a window as counts[rank][micro-batch], from the corpus alone."""
    corpus = build_corpus(shape.seed, shape.world_size)
    return [[sum(len(corpus.sequence(item)) for item in batch) for batch in batches] for batches in window]


def data_lock(shape: PlanShape) -> str:
    """Return the digest of the corpus and of the rule that draws from it; stored with every checkpoint."""
    document = {
        "corpus": build_corpus(shape.seed, shape.world_size).digest(),
        "rule": PLAN_RULE,
        "seed": shape.seed,
        "world_size": shape.world_size,
        "accumulation": shape.accumulation,
        "batch_size": shape.batch_size,
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
