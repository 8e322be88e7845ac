"""Forms from a schema: the fields, and typed text converted to values."""

from typing import Any

import pytest

from app.runs.kinds import kind_documents
from app.web.forms.fields import form_fields, plain, typed

SCHEMA: dict[str, Any] = {
    "$defs": {"Mode": {"enum": ["a", "b"], "type": "string"}},
    "properties": {
        "count": {"type": "integer", "minimum": 1, "maximum": 10, "title": "Count", "description": "How many."},
        "rate": {"type": "number", "exclusiveMinimum": 0},
        "share": {"type": "boolean"},
        "mode": {"$ref": "#/$defs/Mode", "title": "Mode"},
        "table": {"type": "object"},
        "extra": {"anyOf": [{"type": "integer", "minimum": 5}, {"type": "null"}]},
    },
}


def test_fields_say_what_is_allowed() -> None:
    fields = {field.name: field for field in form_fields(SCHEMA, {"rate": 1e-4, "share": False}, {}, {"mode": "no"})}
    assert fields["count"].hint == "How many. (at least 1, at most 10)"
    assert fields["rate"].usual == "0.0001"
    assert fields["share"].options == ["true", "false"]
    assert fields["mode"].options == ["a", "b"]
    assert fields["mode"].error == "no"
    assert fields["extra"].hint == "(at least 5)"
    assert fields["extra"].numeric


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", " 7 ", 7),
        ("count", "7.5", "7.5"),
        ("count", "many", "many"),
        ("rate", "1e-12", 1e-12),
        ("rate", "nan", "nan"),
        ("rate", "3", 3.0),
        ("share", "true", True),
        ("share", "perhaps", "perhaps"),
        ("mode", "b", "b"),
        ("extra", "9", 9),
        ("table", '{"a": [1]}', {"a": [1]}),
        ("table", "{a", "{a"),
        ("unknown", "1", "1"),
    ],
)
def test_text_becomes_its_type(name: str, text: str, value: Any) -> None:
    found = typed(SCHEMA, {name: text})[name]
    assert found == value
    assert type(found) is type(value)


def test_empty_field_takes_the_preset() -> None:
    assert typed(SCHEMA, {"count": "", "rate": "  "}) == {}


def test_every_preset_survives_its_form() -> None:
    for document in kind_documents():
        for values in document["presets"].values():
            entered = {name: plain(value) for name, value in values.items() if value not in (None, "")}
            assert typed(document["schema"], entered) == {
                key: value for key, value in values.items() if value not in (None, "")
            }


def test_presets_do_not_repeat_their_names() -> None:
    for kind in kind_documents():
        for name, title in kind["preset_titles"].items():
            assert not title.lower().startswith(f"{name}:")
