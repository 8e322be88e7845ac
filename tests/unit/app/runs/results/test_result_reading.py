"""One reading of a result: the result with every field, or one reason why there is none."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from app.runs.errors import NotFound
from app.runs.results.reading import read_file, read_result, result_document, told
from tests.support.results import every_panel, make_result
from trainer.contract.paths import RunPaths

MINIMAL: dict[str, Any] = {
    "kind": "token-parity",
    "verdict": "pass",
    "environment": make_result().environment.model_dump(),
    "params": {},
    "summary": {},
    "limits": [],
    "checks": [{"name": "a", "title": "A", "passed": True}],
    "panels": [{"type": "table", "title": "T", "columns": ["a"], "rows": [[1]]}],
}


DEEP = orjson.dumps({**MINIMAL, "summary": "@"}).replace(b'"@"', b'{"a": %b}')


def write(root: Path, content: Any) -> Path:
    path = RunPaths(root / "1").result
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else orjson.dumps(content))
    return path


def test_result_is_document_and_model(tmp_path: Path) -> None:
    result = make_result(panels=every_panel())
    path = write(tmp_path, b"")
    result.save(path)
    found = read_result(tmp_path, 1, kind="token-parity")
    assert (found.problem, found.missing, found.result) == ("", False, result)
    assert found.document == orjson.loads(path.read_bytes()) == result_document(tmp_path, 1)
    assert told(1, found) == ""


def test_left_out_fields_are_filled(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL)
    document = result_document(tmp_path, 1)
    (check,), (panel,) = document["checks"], document["panels"]
    assert (check["relation"], check["strict"], check["measured"], check["detail"]) == ("at_most", False, None, "")
    assert panel["note"] == ""


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is not valid JSON"),
        (b'{"kind": ', "it is not valid JSON"),
        (b'{"kind": NaN}', "it is not valid JSON"),
        (b"\xff\xfe", "it is not valid JSON"),
        (b"[" * 100_000, "it is not valid JSON"),
        ([], "must be an object"),
        ({}, "kind: is missing"),
        ({**MINIMAL, "verdict": "fail"}, "does not follow from the checks"),
        ({**MINIMAL, "checks": [{"name": "a", "title": "A"}]}, "checks.0.passed: is missing"),
        ({**MINIMAL, "more": 1}, "more: is unknown"),
        (
            {**MINIMAL, "checks": [{**MINIMAL["checks"][0], "measured": 2, "limit": 1, "relation": "equal"}]},
            "checks.0: check a passed, but measured 2 is not equal 1",
        ),
        (DEEP % (b"[" * 300 + b"]" * 300), "nested too deeply"),
        (DEEP % (b"[" * 252 + b"]" * 252), "nested too deeply"),
    ],
)
def test_damage_has_one_reason(tmp_path: Path, content: Any, why: str) -> None:
    found = read_file(write(tmp_path, content))
    assert (found.result, found.document, found.missing) == (None, {}, False)
    assert why in found.problem
    with pytest.raises(NotFound, match="the result of run 1 is damaged: ") as caught:
        result_document(tmp_path, 1)
    assert caught.value.code == "no_result"


def test_every_result_can_be_given(tmp_path: Path) -> None:
    write(tmp_path, DEEP % (b"[" * 245 + b"]" * 245))
    assert orjson.dumps({"runs": [{"result": result_document(tmp_path, 1)}]})


def test_missing_file_is_no_damage(tmp_path: Path) -> None:
    assert read_result(tmp_path, 1).missing
    with pytest.raises(NotFound, match="run 1 has no result: it has not ended"):
        result_document(tmp_path, 1)


def test_unreadable_file_is_told(tmp_path: Path) -> None:
    RunPaths(tmp_path / "1").result.mkdir(parents=True)
    assert read_result(tmp_path, 1).problem == "it cannot be read: Is a directory"


def test_other_kind_is_no_result(tmp_path: Path) -> None:
    make_result().save(write(tmp_path, b""))
    assert "it is of kind 'token-parity', the run of kind 'cifar'" in read_result(tmp_path, 1, kind="cifar").problem
    assert read_result(tmp_path, 1).result is not None
