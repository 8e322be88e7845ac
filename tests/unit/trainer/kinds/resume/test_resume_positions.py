"""The position in the data after a stop at any update: nothing repeated, nothing skipped."""

import pytest

from trainer.tokens.plan import PlanShape, WindowSampler, data_lock

SHAPE = PlanShape(seed=47, world_size=2, accumulation=2, batch_size=8)
WINDOWS = 9


def windows(sampler: WindowSampler, count: int) -> list[list[list[list[int]]]]:
    return [sampler.next_window() for _ in range(count)]


@pytest.mark.parametrize("stop", range(WINDOWS + 1))
def test_stop_anywhere_goes_on(stop: int) -> None:
    whole = windows(WindowSampler(SHAPE), WINDOWS)
    first = WindowSampler(SHAPE)
    before = windows(first, stop)
    second = WindowSampler(SHAPE)
    second.restore(first.state())
    assert second.position == stop
    assert before + windows(second, WINDOWS - stop) == whole


@pytest.mark.parametrize("stop", [1, 3, 8])
def test_started_over_is_noticed(stop: int) -> None:
    whole = windows(WindowSampler(SHAPE), WINDOWS)
    restarted = windows(WindowSampler(SHAPE), WINDOWS - stop)
    assert whole[stop:] != restarted
    off_by_one = WindowSampler(SHAPE)
    windows(off_by_one, stop + 1)
    assert whole[stop] != off_by_one.next_window()


def test_ids_of_a_window_are_distinct() -> None:
    for window in windows(WindowSampler(SHAPE), WINDOWS):
        for batches in window:
            ids = [item for batch in batches for item in batch]
            assert len(set(ids)) == len(ids) == 16


def test_lock_follows_what_orders_the_data() -> None:
    others = [
        PlanShape(seed=48, world_size=2, accumulation=2, batch_size=8),
        PlanShape(seed=47, world_size=3, accumulation=2, batch_size=8),
        PlanShape(seed=47, world_size=2, accumulation=4, batch_size=8),
        PlanShape(seed=47, world_size=2, accumulation=2, batch_size=4),
    ]
    assert len({data_lock(shape) for shape in [SHAPE, *others]}) == 5
