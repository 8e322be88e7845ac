"""Tags in one field are restored unchanged, whatever they contain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.runs.tags import tags_from_text, text_from_tags


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("", []),
        (" , ,", []),
        ("nightly, gloo", ["nightly", "gloo"]),
        ("a,a , b", ["a", "b"]),
        ('"a, b", c', ["a, b", "c"]),
        ("two words", ["two words"]),
        ('6" screen', ['6" screen']),
        ("line\nbreak", ["line break"]),
    ],
)
def test_field_is_read_as_tags(text: str, tags: list[str]) -> None:
    assert tags_from_text(text) == tags


@given(st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=64).map(str.strip)))
def test_tags_survive_the_field(tags: list[str]) -> None:
    tags = list(dict.fromkeys(tag for tag in tags if tag))
    assert tags_from_text(text_from_tags(tags)) == tags


def test_plain_comma_text_would_lose_tags() -> None:
    assert tags_from_text(", ".join(["a, b"])) != ["a, b"]
