"""Readable messages for pydantic's validation errors: what a value must be, and what it was."""

from collections.abc import Mapping
from typing import Any, Final

OWN: Final = "Value error, "
"""Prefix of the messages of our own validators, which are not changed."""
NEEDS: Final = {
    "int": "be a whole number",
    "float": "be a number",
    "finite": "be a finite number",
    "string": "be text",
    "bool": "be true or false",
    "list": "be a list",
    "dict": "be an object of names and values",
    "model": "be an object of names and values",
}
"""Prefix of an error type -> what the value must be."""
LIMITS: Final = {
    "greater_than_equal": ("ge", "be at least"),
    "less_than_equal": ("le", "be at most"),
    "greater_than": ("gt", "be above"),
    "less_than": ("lt", "be below"),
}
LONGEST: Final = 60
"""Maximum number of characters of an invalid value that are shown."""


def fault(item: Mapping[str, Any], *, tell_value: bool = True) -> str:
    """Return the message for one of `ValidationError.errors()`; use `tell_value=False` for possible secrets."""
    kind, context = str(item["type"]), item.get("ctx", {})
    about = kind.split("_", maxsplit=1)[0]
    if kind in ("missing", "extra_forbidden"):
        return "is missing" if kind == "missing" else "is unknown"
    if kind in LIMITS:
        limit, words = LIMITS[kind]
        need = f"{words} {context[limit]}"
    elif kind in ("enum", "literal_error"):
        need = f"be {context['expected']}"
    elif about in NEEDS and kind.endswith(("_type", "_parsing", "_from_float", "finite_number")):
        need = NEEDS[about]
    else:
        words = str(item["msg"])
        need = words.partition(" should ")[2]
        if words.startswith(OWN) or not need:
            return words.removeprefix(OWN)
    value = item.get("input")
    told = tell_value and (value is None or isinstance(value, str | int | float)) and len(repr(value)) <= LONGEST
    return f"must {need}" + (f", given {value!r}" if told else "")
