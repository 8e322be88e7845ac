"""The main check of a run in the list."""

import pytest

from app.runs.derived import RunCheck
from app.runs.results.headline import headline
from trainer.contract.kinds import kinds


def checks(kind: str, **passed: bool | None) -> list[RunCheck]:
    return [RunCheck(run_id=1, name=name, kind=kind, title=name, passed=value) for name, value in passed.items()]


@pytest.mark.parametrize("kind", [name for name, spec in kinds().items() if spec.headline_checks])
def test_headline_check_of_the_kind_wins(kind: str) -> None:
    wanted = kinds()[kind].headline_checks[0]
    assert headline(checks(kind, **{"a": True, wanted: True, "z": True})).name == wanted


def test_what_did_not_pass_wins() -> None:
    assert headline(checks("resume", parameters=True, rng=False, losses=True)).name == "rng"
    assert headline(checks("resume", losses=False, rng=False)).name == "losses"
    assert headline(checks("resume", parameters=True, sampler=None)).name == "sampler"


def test_kind_that_is_not_installed() -> None:
    assert headline(checks("gone", b=True, c=True)).name == "b"
