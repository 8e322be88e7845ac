"""Charts of many ranks: the range of all lines is drawn, and no line that matters disappears in it."""

from typing import Any

import pytest

from app.web.charts.crowd import MOST_LINES, ODD_LINES, SECTIONS, summarised

RANKS = 200


def line(rank: int, values: list[Any], steps: list[float] | None = None) -> dict[str, Any]:
    return {"name": f"rank {rank}", "x": steps or [float(step) for step in range(len(values))], "y": values}


def names(lines: Any) -> list[str]:
    return [item["name"] for item in lines]


def test_few_lines_stay_as_they_are() -> None:
    lines = [line(rank, [1.0, 2.0]) for rank in range(MOST_LINES)]
    assert summarised(lines) == (lines, "")


def test_range_covers_every_line() -> None:
    found, words = summarised([line(rank, [float(rank), 2.0 * rank]) for rank in range(RANKS + 1)])
    low, middle, high = found[:3]
    assert names(found[:3]) == ["lowest of 201", "median of 201", "highest of 201"]
    assert (low["y"], middle["y"], high["y"]) == ([0.0, 0.0], [100.0, 200.0], [200.0, 400.0])
    assert set(names(found[3:])) == {"rank 0", "rank 1", "rank 199", "rank 200"}
    assert "the 4 lines furthest from the median" in words


def test_equal_lines_have_no_odd_ones() -> None:
    found, words = summarised([line(rank, [1.0, 1.0]) for rank in range(RANKS)])
    assert (len(found), words) == (3, "200 lines: lowest, median and highest value; all lines are equal.")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_lines_that_are_not_finite_come_first(value: str) -> None:
    lines = [line(rank, [float(rank), 1.0]) for rank in range(RANKS)]
    lines[100] = line(100, [100.0, value])  # on the median otherwise
    found, _ = summarised(lines)
    assert found[3]["name"] == "rank 100"
    assert found[3]["y"] == [100.0, value]
    assert len(found) == 3 + ODD_LINES


def test_nulls_are_gaps_and_not_odd() -> None:
    lines = [line(rank, [float(rank), 1.0]) for rank in range(RANKS)]
    lines[100] = line(100, [100.0, None])
    assert "rank 100" not in names(summarised(lines)[0])


def test_chosen_line_is_added_once() -> None:
    lines = [line(rank, [float(rank)]) for rank in range(RANKS)]
    assert names(summarised(lines, "rank 90")[0]).count("rank 90") == 1
    assert names(summarised(lines, "rank 0")[0]).count("rank 0") == 1  # one of the odd ones anyway
    assert "rank 90" not in names(summarised(lines)[0])


def test_own_steps_are_gathered_into_sections() -> None:
    lines = [line(rank, [1.0] * 10, [rank + RANKS * step + 0.0 for step in range(10)]) for rank in range(RANKS)]
    lines[7]["y"][4] = 50.0
    low, _, high = summarised(lines)[0][:3]
    assert len(low["x"]) == len(high["x"]) == SECTIONS
    assert (max(low["y"]), max(high["y"])) == (1.0, 50.0)
