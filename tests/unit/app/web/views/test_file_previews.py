"""Previews of a run's files: formatted if they match their names' types, else as plain text."""

from pathlib import Path

import pytest

from app.runs.results.artifacts import Artifact
from app.web.views.previews import PICTURE_BYTES, TEXT_BYTES, offered, preview_of


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_json_is_indented(tmp_path: Path) -> None:
    found = preview_of(write(tmp_path, "a.json", '{"a":[1,2],"ü":null}'))
    assert found.text.splitlines()[1] == '  "a": ['
    assert "ü" in found.text


@pytest.mark.parametrize("text", ['{"a": ', "[" * 20_000])
def test_damaged_json_stays_as_it_is(tmp_path: Path, text: str) -> None:
    found = preview_of(write(tmp_path, "a.json", text))
    assert found.text == text
    assert "bytes" in found.note


def test_long_text_tells_what_is_shown(tmp_path: Path) -> None:
    found = preview_of(write(tmp_path, "a.txt", "x" * (TEXT_BYTES + 1)))
    assert len(found.text) == TEXT_BYTES
    assert found.note == "The first 200,000 of 200,001 bytes."
    long = preview_of(write(tmp_path, "a.json", "[" + "1," * TEXT_BYTES + "1]"))
    assert long.note.startswith("The first 200,000 of")


def test_plain_csv_is_table(tmp_path: Path) -> None:
    found = preview_of(write(tmp_path, "a.csv", 'step,loss\n0,1.5\n1,"1,25"\n'))
    assert (found.columns, found.rows) == (("step", "loss"), (("0", "1.5"), ("1", "1,25")))
    many = preview_of(write(tmp_path, "b.csv", "a,b\n" + "1,2\n" * 500))
    assert (len(many.rows), many.note) == (200, "200 of 500 rows.")


def test_cut_csv_ends_with_whole_row(tmp_path: Path) -> None:
    found = preview_of(write(tmp_path, "a.csv", "a,b\n" + "1234567,2\n" * 30_000))
    assert found.columns == ("a", "b")
    assert "The first 200,000 of" in found.note


@pytest.mark.parametrize("text", ["a,b\n1\n", "only\n1\n", 'a,b\n"x\n', "", "a,b\n"])
def test_odd_csv_is_text(tmp_path: Path, text: str) -> None:
    found = preview_of(write(tmp_path, "a.csv", text))
    assert (found.columns, found.text) == ((), text)


@pytest.mark.parametrize(
    ("kind", "length", "look"),
    [
        ("image/png", 10, "picture"),
        ("image/png", PICTURE_BYTES + 1, ""),
        ("application/json", 10**9, "text"),
        ("text/csv; charset=utf-8", 10, "text"),
        ("text/html; charset=utf-8", 10, ""),
        ("application/octet-stream", 10, ""),
    ],
)
def test_look_follows_type_and_size(kind: str, length: int, look: str) -> None:
    item = offered(Artifact(path="x", media_type=kind, bytes=length, modified=0))
    assert item.look == look
    assert bool(item.why) == (look == "")
