"""Naming the odd rank of a hang: one name, the correct one, and none without evidence."""

from typing import Any

from worker.hang import Position, hang_text, odd_ranks


def position(rank: int, **known: Any) -> Position:
    values = {"silent": 9.0, "stopped": False, "collective": 5, "inside": True, "operation": "gradients"}
    return Position(rank=rank, phase="backward", step=3, **{**values, **known})


def test_stopped_rank_is_named() -> None:
    for victim in (0, 1):
        positions = [position(rank, stopped=rank == victim) for rank in (0, 1)]
        assert odd_ranks(positions)[0] == [victim]


def test_rank_behind_is_named() -> None:
    assert odd_ranks([position(0), position(1, collective=4), position(2)])[0] == [1]
    assert odd_ranks([position(0), position(1, inside=False), position(2)])[0] == [1]


def test_looping_rank_is_named() -> None:
    ranks, why = odd_ranks([position(0, collective=4, inside=False), position(1)])
    assert ranks == [0]
    assert "number 5" in why


def test_two_odd_ranks_are_both_told() -> None:
    positions = [position(0), position(1, collective=3), position(2), position(3, collective=4)]
    ranks, why = odd_ranks(positions)
    assert ranks == [1, 3]
    text = hang_text(positions, ranks, why, 300)
    assert text.startswith("Rank 1 holds up the run")
    assert "same applies to rank 3" in text


def test_other_operation_is_odd() -> None:
    assert odd_ranks([position(0), position(1, operation="barrier"), position(2)])[0] == [1]


def test_same_collective_names_nobody() -> None:
    ranks, why = odd_ranks([position(0), position(1)])
    assert ranks == []
    assert "connection" in why


def test_nobody_inside_names_the_longest_silent() -> None:
    positions = [position(0, inside=False), position(1, inside=False, silent=30.0)]
    ranks, why = odd_ranks(positions)
    assert ranks == [1]
    assert "no rank waits in a collective" in why


def test_others_are_said_to_wait_only_where_they_do() -> None:
    assert "where others are waiting" in odd_ranks([position(0), position(1, inside=False)])[1]
    behind = odd_ranks([position(0, collective=4, inside=False), position(1, collective=5, inside=False)])
    assert behind[0] == [0]
    assert behind[1].endswith("which others have left")


def test_ranks_in_different_collectives_are_not_called_a_stuck_connection() -> None:
    ranks, why = odd_ranks([position(0, operation="gradients, bucket 0"), position(1, operation="rank 0's gradient")])
    assert ranks == []
    assert "different collectives (rank 0 in gradients, bucket 0, rank 1 in rank 0's gradient)" in why
    assert "connection" not in why
