"""The relation of checks: passed checks satisfy it, and results without a relation are read as before."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.ended import make_result
from trainer.contract.result import Check, Relation, Result, fits


def load(path: Path) -> Result:
    return Result.model_validate_json(path.read_bytes())


def check(measured: Any, limit: Any, *, passed: bool | None = True, **fields: Any) -> Check:
    return Check(name="c", title="C", passed=passed, measured=measured, limit=limit, **fields)


@pytest.mark.parametrize(
    ("measured", "limit", "relation", "strict", "found"),
    [
        (1e-6, 1e-6, "at_most", False, True),
        (1e-6, 1e-6, "at_most", True, False),
        (2e-6, 1e-6, "at_most", False, False),
        (18, 18, "equal", False, True),
        (17, 18, "equal", False, False),
        (19, 18, "equal", False, False),
        (18, 18.0, "equal", False, True),
        (2, 2, "at_least", False, True),
        (2, 2, "at_least", True, False),
        (1, 2, "at_least", False, False),
        (3, 2, "at_least", True, True),
        ("Infinity", 1e-6, "at_least", True, True),
        ("Infinity", 1e-6, "at_most", False, False),
        ("-Infinity", 1e-6, "at_most", False, True),
        ("NaN", 1e-6, "at_most", False, None),
        (None, 1e-6, "at_most", False, None),
        (1e-6, None, "at_least", False, None),
    ],
)
def test_numbers_fit_or_not(measured: Any, limit: Any, relation: str, strict: bool, found: bool | None) -> None:
    assert fits(measured, limit, Relation(relation), strict=strict) is found


@pytest.mark.parametrize(
    ("relation", "strict", "right", "wrong"),
    [
        (Relation.AT_MOST, False, 1.0, 1.1),
        (Relation.AT_MOST, True, 0.9, 1.0),
        (Relation.EQUAL, False, 1.0, 1.1),
        (Relation.AT_LEAST, False, 1.0, 0.9),
        (Relation.AT_LEAST, True, 1.1, 1.0),
    ],
)
def test_what_passes_fits(relation: Relation, strict: bool, right: float, wrong: float) -> None:
    assert check(right, 1.0, relation=relation, strict=strict).passed
    with pytest.raises(ValidationError, match=f"c passed, but measured {wrong} is not "):
        check(wrong, 1.0, relation=relation, strict=strict)
    # Failed or unjudged checks may have numbers that satisfy it: their detail says why.
    for passed in (False, None):
        assert check(right, 1.0, passed=passed, relation=relation, strict=strict).fits
        assert check(wrong, 1.0, passed=passed, relation=relation, strict=strict).fits is False


def test_equal_is_never_strict() -> None:
    with pytest.raises(ValidationError, match="strict makes no sense with relation equal"):
        check(1, 1, relation=Relation.EQUAL, strict=True)


def test_unknown_relation_is_refused() -> None:
    with pytest.raises(ValidationError, match="at_most"):
        Check.model_validate({"name": "c", "title": "C", "passed": True, "relation": "about"})


def test_old_result_is_read_as_before(tmp_path: Path) -> None:
    # A negative control as earlier versions wrote it: far above its limit, passed, without a relation.
    document = make_result().model_dump(mode="json")
    document["checks"] = [
        {"name": "negative_control", "title": "Rejected", "passed": True, "measured": 0.02, "limit": 1e-6}
    ]
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    found = load(path).checks[0]
    assert (found.relation, found.strict, found.passed) == (Relation.AT_MOST, False, True)
    document["checks"][0]["relation"] = "at_most"
    path.write_text(json.dumps(document))
    with pytest.raises(ValidationError, match="not at most 1e-06"):
        load(path)
    document["checks"][0] |= {"relation": "at_least", "strict": True}
    path.write_text(json.dumps(document))
    assert load(path).checks[0].fits


def test_saving_states_only_what_was_given(tmp_path: Path) -> None:
    # A kind without relations must not get one assigned: its control could then not be read again.
    path = tmp_path / "result.json"
    silent = make_result(
        check(0.02, 1e-6), check(3e-8, 1e-6, relation=Relation.AT_MOST).model_copy(update={"name": "d"})
    )
    silent.save(path)
    written = json.loads(path.read_text())["checks"]
    assert ["relation" in item for item in written] == [False, True]
    assert load(path).checks == silent.checks
