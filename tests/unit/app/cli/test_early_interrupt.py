"""Ctrl-C before `ddp-audit trace` has recorded its run is not lost."""

import signal
import threading
from typing import Any, cast

import pytest

from app.cli.client import Client
from app.cli.tracing import Own

BOUND = 30
"""Seconds."""


class Answers:
    """Takes the place of the service: notes what is posted."""

    def __init__(self) -> None:
        self.posted: list[str] = []
        self.asked = threading.Event()

    def post(self, path: str) -> None:
        self.posted.append(path)
        self.asked.set()

    def get(self, _path: str) -> dict[str, Any]:
        return {"state": "cancelled"}


class Slow(Own):
    """Interrupted from the keyboard before its run is recorded, or never."""

    def __init__(self, answers: Answers, *, interrupted: bool) -> None:
        super().__init__(cast(Client, answers), output_to_stderr=True)
        self._answers, self._early = answers, interrupted

    def _execute(self, _body: dict[str, Any]) -> None:
        if self._early:
            signal.raise_signal(signal.SIGINT)
            assert self._interrupted.wait(BOUND)
        self._recorded(7)
        if self._early:
            self._answers.asked.wait(BOUND)
        self._ended.set()


@pytest.fixture(autouse=True)
def _keyboard() -> Any:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test runner may ignore it
    yield
    signal.signal(signal.SIGINT, before)


def test_run_is_cancelled_once_it_is_recorded() -> None:
    answers = Answers()
    with pytest.raises(KeyboardInterrupt):
        Slow(answers, interrupted=True).carry_out({})
    assert answers.posted == ["/runs/7/cancel"]


def test_run_that_nobody_interrupts_is_not_cancelled() -> None:
    answers = Answers()
    assert Slow(answers, interrupted=False).carry_out({}) == {"state": "cancelled"}
    assert answers.posted == []
