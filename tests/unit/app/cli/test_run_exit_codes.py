"""Exit codes of ended runs, and parameters as `key=value` words."""

from typing import Any

import pytest

from app.cli.exits import CommandError, of_run, of_status
from app.cli.output import shown
from app.cli.running import read_params

ENDED = [
    ("succeeded", "completed", "pass", 0),
    ("succeeded", "completed", "fail", 1),
    ("succeeded", "completed", "inconclusive", 1),
    ("failed", "rank_exit", None, 3),
    ("failed", "out_of_memory", None, 3),
    ("failed", "hang", None, 5),
    ("failed", "time_limit", None, 5),
    ("cancelled", "cancelled_by_user", None, 4),
    ("lost", "worker_lost", None, 5),
]


@pytest.mark.parametrize(("state", "reason", "verdict", "code"), ENDED)
def test_ended_run_has_one_code(state: str, reason: str, verdict: str | None, code: int) -> None:
    assert of_run({"state": state, "reason": reason, "verdict": verdict}) == code


@pytest.mark.parametrize(("status", "code"), [(404, 6), (422, 2), (409, 2), (401, 2), (413, 2), (500, 3), (503, 3)])
def test_problem_has_one_code(status: int, code: int) -> None:
    assert of_status(status) == code


WORDS: list[tuple[list[str], dict[str, Any]]] = [
    ([], {}),
    (["updates=5"], {"updates": 5}),
    (["rtol=1e-4", "share_gpu=true", "mode=both"], {"rtol": 1e-4, "share_gpu": True, "mode": "both"}),
    (["data=folder:a=b"], {"data": "folder:a=b"}),
    (["x="], {"x": ""}),
    (["x=NaN", "y=-Infinity"], {"x": "NaN", "y": "-Infinity"}),
    (['x="5"'], {"x": "5"}),
]


@pytest.mark.parametrize(("words", "params"), WORDS)
def test_words_become_values(words: list[str], params: dict[str, Any]) -> None:
    assert read_params(words) == params


@pytest.mark.parametrize("words", [["updates"], ["=5"], ["a=1", "a=2"]])
def test_malformed_word_is_refused(words: list[str]) -> None:
    with pytest.raises(CommandError) as caught:
        read_params(words)
    assert caught.value.code == 2


def test_control_characters_are_replaced() -> None:
    assert shown("a\x1b[31mb\tc\nd\u202e") == "a\ufffd[31mb\tc\nd\ufffd"
