"""Evaluation counts every sample once at any world size; a padding sampler and averages of averages do not."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

from trainer.common.evaluation import Evaluation, Tally, batched, share

SAMPLES, CLASSES = 100, 4
GENERATOR = torch.Generator().manual_seed(9)
LOGITS = torch.randn(SAMPLES, CLASSES, generator=GENERATOR)
LABELS = torch.randint(0, CLASSES - 1, (SAMPLES,), generator=GENERATOR)  # the last class never occurs


class Sums:
    """Adds up the contributions of simulated ranks, call by call."""

    def __init__(self, ranks: int) -> None:
        self.handed: list[list[list[Any]]] = [[] for _ in range(ranks)]

    def recorder(self, rank: int) -> Any:
        def record(values: Sequence[Any]) -> list[Any]:
            self.handed[rank].append(list(values))
            return list(values)

        return record

    def replay(self) -> Any:
        calls = iter(zip(*self.handed, strict=True))
        return lambda _: [sum(column) for column in zip(*next(calls), strict=True)]


def evaluated(ids_by_rank: Sequence[Sequence[int]]) -> Evaluation:
    sums = Sums(len(ids_by_rank))
    tallies = []
    for ids in ids_by_rank:
        tally = Tally(samples=SAMPLES, classes=CLASSES, device=torch.device("cpu"))
        for part in batched(ids, 7):
            tally.add(part, LOGITS[list(part)], LABELS[list(part)])
        tallies.append(tally)
    for rank, tally in enumerate(tallies):
        if ids_by_rank[rank]:
            tally.combined(sums.recorder(rank), sums.recorder(rank))
    replay = sums.replay()
    return tallies[0].combined(replay, replay)


@pytest.mark.parametrize("count", [1, 10, 10_000])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7, 8, 64])
def test_every_id_belongs_to_one_rank(count: int, world_size: int) -> None:
    parts = [share(count, rank, world_size) for rank in range(world_size)]
    assert sorted(number for part in parts for number in part) == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_rank_outside_group_refused() -> None:
    with pytest.raises(ValueError, match=r"rank 2 is outside 0\.\.1"):
        share(10, 2, 2)


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_matrix_equals_single_process(world_size: int) -> None:
    single = evaluated([range(SAMPLES)])
    several = evaluated([share(SAMPLES, rank, world_size) for rank in range(world_size)])
    assert several.confusion == single.confusion
    assert (several.total, several.repeated, several.missing) == (SAMPLES, [], [])
    assert several.predicted == single.predicted == LOGITS.argmax(dim=1).tolist()
    assert several.accuracy == single.accuracy
    assert several.loss == pytest.approx(single.loss, rel=1e-12)
    assert several.loss == pytest.approx(float(torch.nn.functional.cross_entropy(LOGITS.double(), LABELS)), rel=1e-12)


@pytest.mark.parametrize(("world_size", "rows"), [(3, 102), (7, 105)])
def test_padding_sampler_is_told(world_size: int, rows: int) -> None:
    padded: list[list[int]] = [
        list(DistributedSampler(range(SAMPLES), world_size, rank, shuffle=False))  # type: ignore[arg-type]
        for rank in range(world_size)
    ]
    found = evaluated(padded)
    assert found.total == rows
    assert found.repeated == list(range(rows - SAMPLES))
    assert [found.predicted[number] for number in found.repeated] == [-1] * len(found.repeated)


def test_dropped_samples_are_told() -> None:
    dropped: list[list[int]] = [
        list(DistributedSampler(range(SAMPLES), 3, rank, shuffle=False, drop_last=True))  # type: ignore[arg-type]
        for rank in range(3)
    ]
    found = evaluated(dropped)
    assert (found.total, found.missing) == (99, [99])


def test_uneven_ranks_weigh_by_samples() -> None:
    # 0.8 on 100 and 0.6 on 200 samples are 200 of 300, not the mean 0.7 of the two accuracies.
    sums = Sums(2)
    tallies: list[Tally] = []
    for right, count in ((80, 100), (120, 200)):
        tally = Tally(samples=300, classes=2, device=torch.device("cpu"))
        labels = torch.zeros(count, dtype=torch.int64)
        logits = torch.tensor([[1.0, 0.0]] * right + [[0.0, 1.0]] * (count - right))
        first = 0 if not tallies else 100
        tally.add(range(first, first + count), logits, labels)
        tallies.append(tally)
    for rank, tally in enumerate(tallies):
        tally.combined(sums.recorder(rank), sums.recorder(rank))
    replay = sums.replay()
    found = tallies[0].combined(replay, replay)
    assert found.accuracy == 200 / 300
    assert found.confusion == [[200, 100], [0, 0]]


def test_absent_class_has_zero_row() -> None:
    assert evaluated([range(SAMPLES)]).confusion[CLASSES - 1] == [0] * CLASSES


def test_nothing_counted_is_an_error() -> None:
    tally = Tally(samples=3, classes=2, device=torch.device("cpu"))
    with pytest.raises(ValueError, match="no sample was evaluated"):
        tally.combined(list, list)
