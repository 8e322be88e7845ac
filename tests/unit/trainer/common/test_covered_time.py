"""Time with at least one active bucket."""

import pytest

from trainer.common.sync_counter import covered


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0.0),
        ([(1.0, 2.0)], 1.0),
        ([(1.0, 2.0), (3.0, 5.0)], 3.0),
        ([(3.0, 5.0), (1.0, 4.0)], 4.0),
        ([(1.0, 9.0), (2.0, 3.0), (4.0, 5.0)], 8.0),
    ],
)
def test_overlapping_buckets_count_once(spans: list[tuple[float, float]], seconds: float) -> None:
    assert covered(spans) == seconds
