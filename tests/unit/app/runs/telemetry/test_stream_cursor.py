"""The cursor of a stream: encoding is reversible, and anything else is refused."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.runs.errors import Refused
from app.runs.telemetry.cursor import Cursor, decode

COUNTS = st.integers(0, 2**63 - 1)
CURSORS = st.builds(
    Cursor,
    event=COUNTS,
    move=COUNTS,
    position=st.integers(-1, 2**40),
    attempt=COUNTS,
    offsets=st.lists(COUNTS, max_size=130).map(tuple),
    ended=st.booleans(),
)


@given(CURSORS)
def test_cursor_survives_its_text(cursor: Cursor) -> None:
    text = cursor.encode()
    assert decode(text) == cursor
    assert text.isascii()
    assert not set("+/=&? \n") & set(text)


def written(fields: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "ünïcode",
        "a" * 20_000,
        written([]),
        written({}),
        written(5),
        written([2, 0, 0, 0, 0, [], 0]),
        written([1, 0, 0, 0, 0, [], 0, 0]),
        written([1, -2, 0, 0, 0, [], 0]),
        written([1, 0.5, 0, 0, 0, [], 0]),
        written([1, True, 0, 0, 0, [], 0]),
        written([1, 2**64, 0, 0, 0, [], 0]),
        written([1, 0, 0, 0, 0, 7, 0]),
        written([1, 0, 0, 0, 0, ["a"], 0]),
        written([1, 0, 0, 0, 0, [0] * 5000, 0]),
    ],
)
def test_foreign_text_is_refused(text: str) -> None:
    with pytest.raises(Refused) as caught:
        decode(text)
    assert caught.value.errors[0].field == "after"


def test_offsets_grow_where_needed() -> None:
    cursor = Cursor().with_offset(3, 10).with_offset(0, 4)
    assert cursor.offsets == (4, 0, 0, 10)
    assert (cursor.offset(3), cursor.offset(99)) == (10, 0)
