"""Pieces of a log: whole characters, and every byte exactly once."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.runs.telemetry.logs import LogFile, read_piece


def log(path: Path, *, ended: bool) -> LogFile:
    return LogFile(path=path, stage="train", attempt=1, rank=0, stream="stdout", ended=ended)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@given(text=st.text(max_size=60), limit=st.integers(4, 20), ended=st.booleans())
def test_pieces_join_to_the_text(folder: Path, text: str, limit: int, ended: bool) -> None:
    path = folder / "log"
    path.write_bytes(text.encode(errors="replace"))
    joined, offset = "", 0
    while (piece := read_piece(log(path, ended=ended), offset, limit)).next_offset > offset:
        joined, offset = joined + piece.text, piece.next_offset
    assert joined == text.encode(errors="replace").decode()
    assert offset == path.stat().st_size


def test_unfinished_character_waits(folder: Path) -> None:
    path = folder / "torn"
    path.write_bytes("ab€".encode()[:-1])
    going, over = read_piece(log(path, ended=False)), read_piece(log(path, ended=True))
    assert (going.text, going.next_offset) == ("ab", 2)
    assert (over.text, over.next_offset) == ("ab\ufffd", 4)


def test_missing_file_is_empty(folder: Path) -> None:
    piece = read_piece(log(folder / "none", ended=False), 7)
    assert (piece.text, piece.offset, piece.next_offset, piece.size) == ("", 0, 0, 0)


@pytest.mark.parametrize(
    ("offset", "text"), [(0, "0123456789"), (4, "456789"), (99, ""), (-3, "789"), (-99, "0123456789")]
)
def test_offset_counts_from_either_end(folder: Path, offset: int, text: str) -> None:
    path = folder / "digits"
    path.write_bytes(b"0123456789")
    assert read_piece(log(path, ended=True), offset).text == text
