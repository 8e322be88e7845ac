"""Forms from a kind's JSON Schema: fields with their preset values, and typed values from entered text."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.formats import exact
from trainer.contract.targets import CHOICES

INTEGER: Final = re.compile(r"^[+-]?\d{1,18}$")
FLOAT: Final = re.compile(r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?$")
BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """One parameter in the form."""

    name: str
    title: str
    hint: str
    options: list[str]
    """Values to choose from; empty for a text field."""
    numeric: bool
    usual: str
    """The preset's value, used if the field is left empty; empty if there is none."""
    entered: str
    error: str


def form_fields(
    schema: Mapping[str, Any],
    usual: Mapping[str, Any],
    entered: Mapping[str, str],
    errors: Mapping[str, str],
    choices: Mapping[str, list[str]] | None = None,
) -> list[FormField]:
    """Return a field per property of `schema`, in its order; `usual` contains the preset's complete values.

    A property with `"x-form": false` is not shown, one with `"x-choices"` comes first. `choices` contains values that
    only the service knows, by the name of a property or by its `"x-choices"`.
    """
    return [
        _field(
            name,
            {"enum": (choices or {}).get(prop.get(CHOICES, name), []), **_resolve(schema, prop)},
            usual.get(name),
            entered.get(name, ""),
            errors.get(name, ""),
        )
        for name, prop in sorted(schema.get("properties", {}).items(), key=lambda item: CHOICES not in item[1])
        if prop.get("x-form", True) or name in entered
    ]


def _field(name: str, prop: Mapping[str, Any], usual: Any, entered: str, error: str) -> FormField:
    types = _types(prop)
    options = [str(item) for item in prop["enum"]]
    if "boolean" in types:
        options = list(BOOLEANS)
    return FormField(
        name=name,
        title=str(prop.get("title", name)),
        hint=" ".join(part for part in (str(prop.get("description", "")), _range(prop)) if part),
        options=options,
        numeric=bool({"integer", "number"} & set(types)),
        usual=plain(usual),
        entered=entered,
        error=error,
    )


def _resolve(schema: Mapping[str, Any], prop: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a property with its reference resolved."""
    if "$ref" in prop:
        target = schema.get("$defs", {}).get(str(prop["$ref"]).rsplit("/", 1)[-1], {})
        return {**target, **{key: value for key, value in prop.items() if key != "$ref"}}
    return prop


def _types(prop: Mapping[str, Any]) -> list[str]:
    kinds = [prop] if "type" in prop else list(prop.get("anyOf", []))
    return [str(kind["type"]) for kind in kinds if "type" in kind]


def _range(prop: Mapping[str, Any]) -> str:
    # Limits of an optional number are one level deeper.
    parts = [prop, *prop.get("anyOf", [])]
    found = {key: part[key] for part in parts for key in ("minimum", "maximum", "exclusiveMinimum") if key in part}
    words = []
    if "minimum" in found:
        words.append(f"at least {exact(found['minimum'])}")
    if "exclusiveMinimum" in found:
        words.append(f"above {exact(found['exclusiveMinimum'])}")
    if "maximum" in found:
        words.append(f"at most {exact(found['maximum'])}")
    return f"({', '.join(words)})" if words else ""


def plain(value: Any) -> str:
    """Return a value as it is typed into its field, with every digit; text is never quoted there."""
    if value is None:
        return ""
    return value if isinstance(value, str) else exact(value)


def typed(schema: Mapping[str, Any], entered: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of all filled-in fields; text of the wrong type is kept as text and refused later."""
    properties = schema.get("properties", {})
    return {
        name: _value(_resolve(schema, properties.get(name, {})), text.strip())
        for name, text in entered.items()
        if text.strip()
    }


def _value(prop: Mapping[str, Any], text: str) -> Any:
    types = _types(prop)
    if "integer" in types and INTEGER.match(text):
        return int(text)
    if "number" in types and FLOAT.match(text):
        return float(text)
    if "boolean" in types:
        return BOOLEANS.get(text.lower(), text)
    if {"object", "array"} & set(types):
        return _structure(text)
    return text


def _structure(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
