"""Corpus, plan and data lock: sizes, lengths, distinct ids, resumable draws."""

import math
from itertools import pairwise

import pytest

from trainer.tokens.corpus import POOL_SIZE, Corpus, build_corpus, length_range, transition_matrix
from trainer.tokens.plan import PlanShape, WindowSampler, data_lock, token_counts

SHAPE = PlanShape(seed=47, world_size=2, accumulation=2, batch_size=8)


def test_corpus_has_the_stated_sizes() -> None:
    corpus = build_corpus(47, 2)
    assert [len(pool) for pool in corpus.pools] == [512, 512]
    assert (len(corpus.validation), len(corpus.test)) == (128, 256)
    assert {len(sequence) for sequence in corpus.pools[0]} <= set(range(16, 65))
    assert {len(sequence) for sequence in corpus.pools[1]} <= set(range(65, 129))
    assert {symbol for sequence in corpus.test for symbol in sequence} == {0, 1, 2, 3}


@pytest.mark.parametrize("world_size", [2, 3, 5, 64])
def test_length_ranges_cover_without_overlap(world_size: int) -> None:
    ranges = [length_range(rank, world_size) for rank in range(world_size)]
    assert (ranges[0][0], ranges[-1][1]) == (16, 128)
    assert all(left[1] + 1 == right[0] for left, right in pairwise(ranges))
    if world_size > 2:
        widths = {last - first + 1 for first, last in ranges}
        assert max(widths) - min(widths) <= 1


def test_pattern_is_learnable() -> None:
    matrix = transition_matrix(47)
    assert all(math.isclose(sum(row), 1) for row in matrix)
    pairs = [pair for sequence in build_corpus(47, 2).test for pair in pairwise(sequence)]
    best = [row.index(max(row)) for row in matrix]
    share = sum(best[now] == after for now, after in pairs) / len(pairs)
    assert share > 0.35  # chance is 0.25


def test_window_never_repeats_an_id() -> None:
    sampler = WindowSampler(PlanShape(seed=1, world_size=3, accumulation=4, batch_size=128))
    window = sampler.next_window()
    for rank, batches in enumerate(window):
        ids = [item for batch in batches for item in batch]
        assert sorted(ids) == list(range(rank * POOL_SIZE, (rank + 1) * POOL_SIZE))


def test_restored_sampler_goes_on_exactly() -> None:
    sampler, fresh = WindowSampler(SHAPE), WindowSampler(SHAPE)
    first = sampler.next_window()
    state = sampler.state()
    following = [sampler.next_window() for _ in range(3)]
    fresh.restore(state)
    assert [fresh.next_window() for _ in range(3)] == following
    assert fresh.position == 4
    assert WindowSampler(SHAPE).next_window() == first != following[0]


def test_short_rank_has_fewer_tokens() -> None:
    counts = token_counts(WindowSampler(SHAPE).next_window(), SHAPE)
    assert sum(counts[0]) < sum(counts[1])


def test_lock_follows_corpus_and_plan() -> None:
    other = [
        PlanShape(seed=48, world_size=2, accumulation=2, batch_size=8),
        PlanShape(seed=47, world_size=3, accumulation=2, batch_size=8),
        PlanShape(seed=47, world_size=2, accumulation=4, batch_size=8),
        PlanShape(seed=47, world_size=2, accumulation=2, batch_size=4),
    ]
    assert len({data_lock(shape) for shape in (SHAPE, *other)}) == 5
    assert data_lock(SHAPE) == data_lock(PlanShape(seed=47, world_size=2, accumulation=2, batch_size=8))


def test_one_symbol_changes_the_digest() -> None:
    corpus = build_corpus(47, 2)
    first = corpus.test[0]
    changed = (((first[0] + 1) % 4, *first[1:]), *corpus.test[1:])
    assert Corpus(pools=corpus.pools, validation=corpus.validation, test=changed).digest() != corpus.digest()
