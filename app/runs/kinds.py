"""The kinds as documents: JSON Schema of their parameters, and their presets with every value filled in."""

from functools import cache
from typing import Any

from trainer.contract.kinds import KindSpec, kinds


@cache
def kind_documents() -> list[dict[str, Any]]:
    """Return every kind's document in order of name."""
    return [_document(spec) for spec in kinds().values()]


def _document(spec: KindSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "title": spec.title,
        "description": spec.description,
        "question": spec.question,
        "schema": spec.params.model_json_schema(),
        "presets": {
            name: spec.params.model_validate(dict(values)).model_dump(mode="json")
            for name, values in spec.presets.items()
        },
        "preset_titles": dict(spec.preset_titles),
    }
