"""Ranks on the run page: all of a small run; of a large one those in need of attention and every node."""

from typing import Any

import pytest

from app.runs.documents import Rank
from app.runs.models import RankRow
from app.web.views.ranks import MOST_NODES, MOST_ROWS, WORST_ROWS, node_of, ranks_view, spans


def rank(number: int, **given: Any) -> Rank:
    row = {"run_id": 1, "stage": "train", "attempt": 1, "rank": number, "node": f"n{number // 4:03}", "step": 9}
    return Rank.of(RankRow(**{**row, "phase": "train", "local_rank": number % 4, **given}))


def test_small_run_shows_every_rank() -> None:
    view = ranks_view([rank(number) for number in range(MOST_ROWS)])
    assert [row.rank for row in view.rows] == list(range(MOST_ROWS))
    assert (view.grouped, view.nodes) == (False, [])


def test_ranks_that_need_attention_come_first() -> None:
    ranks = [rank(number) for number in range(1024)]
    ranks[900] = rank(900, exit_code=1)
    ranks[800] = rank(800, signal=9)
    ranks[700] = rank(700, stalled=True)
    ranks[600] = rank(600, malformed=2)
    ranks[500] = rank(500, step=3)
    ranks[400] = rank(400, exit_code=0)  # succeeded
    view = ranks_view(ranks)
    assert view.grouped
    assert [row.rank for row in view.rows[:6]] == [800, 900, 700, 600, 500, 0]
    assert len(view.rows) == WORST_ROWS
    assert (view.total, view.node_count, len(view.nodes)) == (1024, 256, MOST_NODES)
    problems = {node.name: node.problems for node in view.nodes if node.problems}
    assert problems == {
        "n150": "1 rank with malformed lines",
        "n175": "1 rank stalled",
        "n200": "1 rank with errors",
        "n225": "1 rank with errors",
    }
    assert [node.name for node in view.nodes[:5]] == [*problems, "n000"]


def test_node_row_sums_up_its_ranks() -> None:
    ranks = [rank(number) for number in range(100)]
    ranks[1] = rank(1, step=12_000, phase="save")
    row = ranks_view(ranks).nodes[0]
    assert (row.name, row.ranks, row.count) == ("n000", "0 to 3", 4)
    assert (row.steps, row.phases) == ("9 to 12,000", "train (3), save (1)")


@pytest.mark.parametrize(
    ("numbers", "words"),
    [([], ""), ([3], "3"), ([0, 1, 2], "0 to 2"), ([0, 2, 3], "0, 2 to 3"), ([0, 2, 4, 6, 8], "0, 2, 4, 6, …")],
)
def test_numbers_are_shown_as_ranges(numbers: list[int], words: str) -> None:
    assert spans(numbers) == words


def test_host_stands_in_for_the_node() -> None:
    assert node_of(rank(0, node="", host="h")) == "h"
    assert node_of(rank(0, node="", host="")) == "unknown"
