"""docs/run-lifecycle.md matches the table of state changes: no state, change or reason more or less."""

import re
from pathlib import Path

from app.runs.states import FINAL, MOVES, REASONS, Reason, State

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "run-lifecycle.md").read_text()


def table(heading: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


def test_states_and_moves_are_the_codes() -> None:
    said = {
        State(row[0].strip("`")): (row[1] == "yes", frozenset(map(State, re.findall(r"`(\w+)`", row[2]))))
        for row in table("States")
    }
    assert said == {state: (state in FINAL, MOVES[state]) for state in State}


def test_reasons_and_their_states_are_the_codes() -> None:
    said = {Reason(row[0].strip("`")): State(row[1].strip("`")) for row in table("Reasons")}
    assert said == {reason: state for state, reasons in REASONS.items() for reason in reasons}


def test_diagram_draws_every_move_once() -> None:
    drawn = re.findall(r"^    (\w+) --> (\w+) :", PAGE, re.MULTILINE)
    moves = [(str(origin), str(target)) for origin, targets in MOVES.items() for target in targets]
    assert sorted(drawn) == sorted(moves)
    finals = re.findall(r"^    (\w+) --> \[\*\]$", PAGE, re.MULTILINE)
    assert sorted(finals) == sorted(FINAL)


def test_every_row_explains_itself() -> None:
    for row in [*table("States"), *table("Reasons")]:
        assert len(row[-1]) > 10, row
