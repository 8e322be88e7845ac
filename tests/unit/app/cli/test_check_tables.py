"""Tables of checks on the command line show the requirement of each number."""

from typing import Any

import pytest

from app.cli.checking import say_verification
from app.cli.reading import compared_check
from app.cli.running import say_checks
from app.cli.sharing import say_trend

READ: list[dict[str, Any]] = [
    {"measured": 3e-8, "limit": 1e-6, "relation": "at_most", "strict": False},
    {"measured": 18, "limit": 18, "relation": "equal", "strict": False},
    {"measured": 0.0235, "limit": 1e-6, "relation": "at_least", "strict": True},
    {"measured": 0.0235, "limit": 1e-6},
]
"""The last one as answered by services of an earlier version."""
REQUIRED = ["at most 1e-06", "expected 18", "must exceed 1e-06", "limit 1e-06"]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_checks_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [
        {"name": f"c{place}", "passed": True, "unit": "", "detail": "", **read} for place, read in enumerate(READ)
    ]
    say_checks({"checks": checks})
    head, _rule, *rows = lines(capsys)
    assert head == "check outcome measured required unit"
    assert rows == [f"c{place} pass {read['measured']} {REQUIRED[place]}" for place, read in enumerate(READ)]


@pytest.mark.parametrize(
    ("read", "column", "value"),
    [(READ[0], "share of limit", "3.0 %"), (READ[1], "deviation", "0"), (READ[2], "margin", "+0.023499")],
)
def test_trend_follows_the_relation(
    capsys: pytest.CaptureFixture[str], read: dict[str, Any], column: str, value: str
) -> None:
    item = {"run_id": 7, "finished_at": None, "passed": True, **read}
    say_trend({"title": "One check", "relation": read["relation"], "strict": read["strict"], "items": [item]})
    title, head, _rule, row = lines(capsys)
    assert (title, head) == ("One check", f"run finished result measured required {column}")
    assert row == f"7 - pass {read['measured']} {REQUIRED[READ.index(read)]} {value}"


def test_verification_says_what_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"check": f"c{place}", "passed": True, **read} for place, read in enumerate(READ[:3])]
    say_verification({"rows": rows, "problems": [], "ok": True, "pass_line": "PASS"})
    head, _rule, *told, last = lines(capsys)
    assert (head, last) == ("check passed measured required", "PASS")
    assert told == [f"c{place} yes {read['measured']} {REQUIRED[place]}" for place, read in enumerate(READ[:3])]


def test_compared_checks_say_what_is_required() -> None:
    judged = [compared_check({"passed": True, "unit": "u", **read}) for read in READ[:3]]
    assert judged == [f"pass {read['measured']} u ({REQUIRED[place]})" for place, read in enumerate(READ[:3])]
    assert compared_check({"passed": None, "unit": "", "measured": None, "limit": None}) == "not judged -"
    assert compared_check(None) is None


def test_verifier_of_a_kind_keeps_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"mode": "every", "gradient_syncs": 400}
    say_verification({"rows": [row], "problems": [], "ok": True, "pass_line": "PASS"})
    assert lines(capsys)[0] == "mode gradient syncs"
