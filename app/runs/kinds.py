"""Documents of kinds: JSON Schema of their parameters, and their presets with every value filled in."""

from functools import cache
from typing import Any

from pydantic import Field

from app.documents import Document
from trainer.contract.kinds import KindSpec, kinds


class KindDocument(Document):
    """A kind and the parameters of its runs."""

    name: str
    title: str
    description: str
    question: str
    params_schema: dict[str, Any] = Field(alias="schema", description="JSON Schema of the parameters.")
    presets: dict[str, dict[str, Any]] = Field(description="Every parameter of every preset.")
    preset_titles: dict[str, str]
    traces: bool = Field(description="Whether runs look into a program of yours; see `ddp-audit trace`.")


class KindList(Document):
    """Kinds in order of name."""

    items: list[KindDocument]


@cache
def kind_documents() -> list[KindDocument]:
    """Return every kind's document in order of name."""
    return [_document(spec) for spec in kinds().values()]


def _document(spec: KindSpec) -> KindDocument:
    presets = {
        name: spec.params.model_validate(dict(values)).model_dump(mode="json") for name, values in spec.presets.items()
    }
    return KindDocument(
        name=spec.name,
        title=spec.title,
        description=spec.description,
        question=spec.question,
        params_schema=spec.params.model_json_schema(),
        presets=presets,
        preset_titles=dict(spec.preset_titles),
        traces=spec.traces,
    )
