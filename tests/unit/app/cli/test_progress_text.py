"""Messages of a command while its run waits: only lasting reasons, each once."""

import pytest

from app.cli.progress import STAYED, Lines


def document(why: str | None, state: str = "queued") -> dict[str, object]:
    return {"id": 3, "state": state, "stages": [], "queue": None if why is None else {"position": 1, "why": why}}


def test_reason_that_stays_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    lines.update(document("no worker"))
    assert capsys.readouterr().err == "run 3 queued\n"  # a momentary reason needs no action
    for _ in range(2 * STAYED):
        lines.update(document("the CPU is in use"))
    lines.update(document(None, "starting"))
    assert capsys.readouterr().err == "run 3 waits: the CPU is in use\nrun 3 starting\n"
