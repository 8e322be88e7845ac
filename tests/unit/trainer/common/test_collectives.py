"""Collectives among real gloo processes, in the whole group and in a part of it, and alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.collectives_lab import PART, SIZE
from trainer.common.collectives import Collectives

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """The results of each rank."""
    argv = [sys.executable, "-m", "tests.support.collectives_lab"]
    output = subprocess.run(argv, cwd=ROOT, capture_output=True, check=True, timeout=180).stdout
    answers: list[dict[str, Any]] = json.loads(output)
    return answers


def test_every_rank_gets_the_same(found: list[dict[str, Any]]) -> None:
    common = {
        "sum": [3, 3],
        "max": [2, 0],
        "floats": [1.5],
        "gathered": ["rank 0", "rank 1", "rank 2"],
        "broadcast": 2,
    }
    assert [{name: rank.get(name) for name in common} for rank in found] == [common] * SIZE


def test_part_counts_its_own_ranks(found: list[dict[str, Any]]) -> None:
    assert "part gathered" not in found[0]
    for rank in PART:
        assert (found[rank]["part gathered"], found[rank]["part broadcast"]) == ([1, 2], [1, 2])


def test_failure_of_one_is_everybodys(found: list[dict[str, Any]]) -> None:
    assert [rank["failure"] for rank in found] == ["rank 1: ZeroDivisionError: integer division or modulo by zero"] * 3


def test_single_rank_talks_to_itself() -> None:
    alone = Collectives.of_default_group()
    assert (alone.rank, alone.world_size) == (0, 1)
    assert (alone.sum_integers([4]), alone.gather_objects("a"), alone.broadcast_object("b")) == ([4], ["a"], "b")
