"""The help of the command line: every command in one section, nothing truncated at 80 columns, no Python types."""

import re

import pytest
import typer

from app.cli.helping import SECTIONS, brief
from app.cli.main import app

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def help_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *command: str) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    app([*command, "--help"], prog_name="ddp-audit", standalone_mode=False)
    return capsys.readouterr().out


def test_every_command_has_one_section() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == COMMANDS


def test_overview_cuts_nothing_off(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = help_of(capsys, monkeypatch)
    assert max(map(len, shown.splitlines())) <= 80
    shown = shown.partition("\nRun:\n")[2]
    assert "..." not in shown
    rows = re.findall(r"^  ([a-z-]+) {2,}(\S.*)$", shown, re.MULTILINE)
    assert sorted(name for name, _ in rows) == COMMANDS  # a text that needs two lines would appear as a missing row
    assert all(len(text.split()) >= 2 for _, text in rows)


@pytest.mark.parametrize("name", COMMANDS)
def test_options_say_what_to_write(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = help_of(capsys, monkeypatch, name)
    assert not re.search(r"<(str|int|float|path|file|list|bool)\b", shown)
    assert not re.search(r"\b(Optional|NoneType|list\[)", shown)
    entries = re.findall(r"^  (-[^\n]*\n(?:   [^\n]*\n)*)", shown.partition("Options:")[2], re.MULTILINE)
    assert entries
    assert all(re.search(r" {2,}\S|\n {6,}\S", entry) for entry in entries)  # every option is explained


def test_brief_text_ends_where_sense_does() -> None:
    assert brief("Remove it; print its outcome.", 50) == "Remove it"
    assert brief("Put a backup, once checked,\n    into a directory.", 20) == "Put a backup"
    assert brief("One line.\n\nMore of it.", 50) == "One line"
