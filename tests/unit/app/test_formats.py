"""Numbers, shares, sizes and times as formatted on pages."""

import math
from typing import Any

import pytest

from app import formats


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (282628, "282,628"),
        (2.98e-8, "2.98e-8"),
        (1e-6, "1e-6"),
        (0.0216, "0.0216"),
        (2.5, "2.5"),
        (0.0, "0"),
        (123456.7, "123,457"),
        (None, "–"),
        (True, "yes"),
        ("NaN", "NaN"),
        ("-Infinity", "−∞"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        ("text", "text"),
        ([[344, 305], [757, 1818]], "344, 305; 757, 1,818"),
        ([], ""),
    ],
)
def test_number_is_readable(value: Any, text: str) -> None:
    assert formats.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.30000000000000004, "0.30000000000000004"),
        (1e-12, "1e-12"),
        (3.0, "3.0"),
        (2147483647, "2147483647"),
        (True, "true"),
        (None, "null"),
        ("text", "text"),
        ("true", '"true"'),
        ("80e5005", '"80e5005"'),
        ("NaN", "NaN"),
        (["ü", 0.1], '["ü",0.1]'),
    ],
)
def test_exact_text_reads_back(value: Any, text: str) -> None:
    assert formats.exact(value) == text
    assert formats.read_back(text) == value
    assert type(formats.read_back(text)) is type(value)


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.3, 0.5, 0.3], ["0.3", "0.5", "0.3"]),
        ([0.3, 0.30000000000000004], ["0.3", "0.30000000000000004"]),
        ([0.1 + 0.2, 0.3, None], ["0.30000000000000004", "0.3", "–"]),
        ([1234567, 1234568], ["1,234,567", "1,234,568"]),
        ([[0.3, 1], [0.30000000000000004, 1]], ["[0.3,1]", "[0.30000000000000004,1]"]),
        (["NaN", "NaN"], ["NaN", "NaN"]),
    ],
)
def test_values_side_by_side_tell_their_difference(values: list[Any], texts: list[str]) -> None:
    assert list(map(formats.telling_apart(values), values)) == texts


def test_ratio_becomes_factor() -> None:
    assert formats.times(0.0298) == "3.0 %"
    assert formats.times(23500.0) == "23,500 times"
    assert formats.times(None) == "–"


@pytest.mark.parametrize(("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB")])
def test_size_has_unit(value: int, text: str) -> None:
    assert formats.size(value) == text


@pytest.mark.parametrize(("value", "text"), [(12.44, "12.4 s"), (3599.7, "1 h 00 min"), (61, "1 min 01 s")])
def test_seconds_are_words(value: float, text: str) -> None:
    assert formats.seconds(value) == text


def test_duration_needs_both_ends() -> None:
    assert formats.duration("2026-01-01T00:00:00.000Z", "2026-01-01T00:00:41.300Z") == "41.3 s"
    assert formats.duration("2026-01-01T00:00:00.000Z", None) == "–"
    assert formats.utc("2026-01-01T00:00:00.000Z") == "2026-01-01 00:00:00 UTC"


@pytest.mark.parametrize(
    ("note", "text"),
    [
        ("the file is empty", "The file is empty."),
        ("Already one.", "Already one."),
        ("world_size: must be 2", "world_size: must be 2."),
        ("ids: needs two", "ids: needs two."),
        ("", ""),
    ],
)
def test_note_becomes_sentence(note: str, text: str) -> None:
    assert formats.sentence(note) == text


def test_one_thing_is_no_plural() -> None:
    assert [formats.many(count, "run") for count in (0, 1, 1024)] == ["0 runs", "1 run", "1,024 runs"]


def test_worker_signs_with_short_name() -> None:
    assert formats.who("41939122a18244d1be3a2e1ee9cba838") == "worker 41939122"
    assert formats.who("user") == "user"
    assert formats.who(None) == "–"
