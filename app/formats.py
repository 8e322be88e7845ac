"""Formatting of numbers, shares, durations and sizes on pages; pure functions used as template filters."""

import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

NON_FINITE: Final = {"NaN": "NaN", "Infinity": "∞", "-Infinity": "−∞"}
NOTHING: Final = "–"
WORKER: Final = re.compile(r"^[0-9a-f]{32}$")
"""A worker's id as recorded in the history."""


def number(value: Any) -> str:
    """Return a number for people: whole ones with thousands separators, others with five significant digits.

    Names of non-finite numbers are kept, None is a dash, a list is separated by commas, anything else is shown as text.
    """
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return NON_FINITE.get(value, value)
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else _decimal(value)
    if isinstance(value, list):
        nested = any(isinstance(item, list) for item in value)
        return ("; " if nested else ", ").join(number(item) for item in value)
    return str(value)


def _decimal(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if abs(value) >= 1e-3 and abs(value) < 1e6:
        text = f"{value:,.5g}" if abs(value) < 1e5 else f"{value:,.0f}"
        return text if "e" not in text else f"{value:,.0f}"
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def exact(value: Any) -> str:
    """Return a parameter as `-p name=value` takes it: text unchanged, everything else as JSON with every digit.

    Text that would be read as something else (`true`, `007`) is quoted, so that the shown text reads back as the same
    value.
    """
    if isinstance(value, str) and read_back(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def parameter(value: Any) -> str:
    """Return a parameter of one of several runs, with every digit; a dash for a run without it."""
    return NOTHING if value is None else exact(value)


def read_back(text: str) -> Any:
    """Return the value that `exact` wrote as `text`: parsed if it is JSON, else the text itself."""
    try:
        return json.loads(text, parse_constant=str)  # NaN and Infinity remain text, which no number field accepts
    except (ValueError, RecursionError):
        return text


def telling_apart(values: Sequence[Any], write: Callable[[Any], str] = number) -> Callable[[Any], str]:
    """Return the formatter for values shown side by side: `write`, or `exact` if `write` would hide a difference."""
    different: list[Any] = []
    for value in values:
        if value not in different:
            different.append(value)
    hidden = len({write(value) for value in different}) < len(different)
    return (lambda value: write(value) if value is None else exact(value)) if hidden else write


def percent(value: Any) -> str:
    """Return a share as a percentage with one decimal."""
    return NOTHING if not isinstance(value, int | float) else f"{100 * value:.1f} %"


def times(value: Any) -> str:
    """Return a ratio: as a percentage up to ten times, as a factor above."""
    if not isinstance(value, int | float):
        return NOTHING
    return percent(value) if abs(value) <= 10 else f"{number(float(value))} times"


def size(value: Any) -> str:
    """Return bytes with a binary unit."""
    if not isinstance(value, int | float):
        return NOTHING
    amount, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    for unit in units:
        if abs(amount) < 1024 or unit == units[-1]:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return NOTHING


def moment(value: Any) -> datetime | None:
    """Return an aware datetime from RFC 3339 text; None for None."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.fromisoformat(str(value))


def utc(value: Any) -> str:
    """Return a time in UTC, readable without JavaScript; the browser rewrites it in the viewer's zone."""
    at = moment(value)
    return NOTHING if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def duration(start: Any, end: Any) -> str:
    """Return the time between two moments, such as `1 h 03 min` or `12.4 s`."""
    first, last = moment(start), moment(end)
    if first is None or last is None:
        return NOTHING
    return seconds((last - first).total_seconds())


def seconds(value: Any) -> str:
    """Return a length of time given in seconds."""
    if not isinstance(value, int | float):
        return NOTHING
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def words(value: Any) -> str:
    """Return an identifier such as `rank_signal` as words."""
    return str(value).replace("_", " ")


def sentence(value: Any) -> str:
    """Return text that is a note elsewhere (`the file is empty`) as a full sentence.

    A first word that is a name (`world_size: must be ...`) is not capitalised.
    """
    text = str(value).strip().replace("`", "")
    if not text:
        return ""
    first = text.split(maxsplit=1)[0]
    begin = text if first.endswith(":") or not first.isalpha() else text[0].upper() + text[1:]
    return begin if begin[-1] in ".!?:" else f"{begin}."


def first_clause(text: str) -> str:
    """Return the first sentence of a description, without a full stop."""
    clause = " ".join(text.split("\n\n", 1)[0].split())
    for end in (". ", "; ", ": "):
        clause = clause.split(end, 1)[0]
    return clause.removesuffix(".")


def many(count: int, thing: str) -> str:
    """Return a number with what it counts: `1 run`, `1,024 runs`."""
    return f"{count:,} {thing}" + ("" if count == 1 else "s")


def who(actor: Any) -> str:
    """Return the name of an actor; a worker by the beginning of its id, which also appears in its log."""
    text = str(actor or NOTHING)
    return f"worker {text[:8]}" if WORKER.match(text) else text
