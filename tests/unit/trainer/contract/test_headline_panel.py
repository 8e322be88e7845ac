"""The headline panel of a result: one of its panels, chosen by failed checks, and absent in older results."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.support.results import every_panel, make_result
from trainer.contract.result import Check, Result, headline_of

EXPLAINS = {"control": "The control", "speed": "The times"}


def check(name: str, passed: bool | None) -> Check:
    return Check(name=name, title=name, passed=passed)


@pytest.mark.parametrize(
    ("found", "title"),
    [
        ({"errors": True, "speed": True}, "The errors"),
        ({"errors": False, "speed": False}, "The errors"),
        ({"errors": True, "speed": False}, "The times"),
        ({"errors": True, "control": None, "speed": False}, "The control"),
    ],
)
def test_first_check_in_trouble_decides(found: dict[str, bool | None], title: str) -> None:
    assert headline_of([check(name, passed) for name, passed in found.items()], EXPLAINS, "The errors") == title


def test_headline_must_be_a_panel() -> None:
    result = make_result(panels=every_panel()).model_dump(mode="json")
    assert Result.model_validate({**result, "headline": "Loss"}).headline == "Loss"
    with pytest.raises(ValidationError, match="'Accuracy' is not the title of a panel"):
        Result.model_validate({**result, "headline": "Accuracy"})


def test_older_result_has_none(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    make_result(panels=every_panel()).save(path)
    document = json.loads(path.read_text())
    del document["headline"]
    assert Result.model_validate(document).headline is None
