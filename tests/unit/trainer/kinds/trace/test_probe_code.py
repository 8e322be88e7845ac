"""The probe runs in the user's Python: old syntax, standard library only, and faults that stay inside."""

import ast
import sys
from pathlib import Path

import pytest

from tests.support.traced import ROOT

SITE = ROOT / "trainer" / "kinds" / "trace" / "site"
FILES = sorted(SITE.rglob("*.py"))


def test_every_file_is_found() -> None:
    assert len(FILES) > 12


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_python_3_9_can_read_it(path: Path) -> None:
    text = path.read_text()
    ast.parse(text, feature_version=(3, 9))
    assert "from __future__ import annotations" in text or not text.strip()  # newer types stand in annotations alone


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_is_imported_but_the_standard_library(path: Path) -> None:
    allowed = {*sys.stdlib_module_names, "ddp_audit_probe", "__future__"}
    for node in ast.walk(ast.parse(path.read_text())):
        names = [item.name for item in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        assert {name.partition(".")[0] for name in names} <= allowed


def test_newer_syntax_would_be_noticed() -> None:
    with pytest.raises(SyntaxError):
        ast.parse("match 1:\n    case 1: pass\n", feature_version=(3, 9))


def test_fault_of_the_probe_switches_one_part_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SITE))
    from ddp_audit_probe.guard import Guard

    guard = Guard()
    calls = []

    def failing() -> None:
        calls.append(1)
        raise ZeroDivisionError("of the probe")

    assert guard.run("losses", failing) is None
    assert guard.run("losses", failing) is None
    assert guard.run("steps", lambda: 7) == 7
    assert calls == [1]  # the part that failed is not called again
    assert list(guard.off) == ["losses"]
    assert "of the probe" in guard.off["losses"]


def test_hook_of_a_part_that_failed_answers_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SITE))
    from ddp_audit_probe.guard import Guard

    hook = Guard().wrapped("losses", lambda _gradient: 1 / 0)
    assert hook("gradient") is None
