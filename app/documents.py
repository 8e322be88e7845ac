"""The base of every document of the API: a model that builds, checks and describes it."""

from typing import Any, Protocol

import orjson
from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """A document; its fields are the members of the JSON, in order."""

    model_config = ConfigDict(frozen=True, serialize_by_alias=True, validate_by_name=True, validate_by_alias=True)

    def __getitem__(self, member: str) -> Any:
        """Return a member by its name in the JSON, as tables and templates use it. Raises KeyError."""
        fields = type(self).model_fields
        if member in fields and fields[member].alias is None:
            return getattr(self, member)
        for name, field in fields.items():
            if field.alias == member:
                return getattr(self, name)
        raise KeyError(member)

    def get(self, member: str) -> Any:
        """Return a member by its name in the JSON, None if this document does not have it."""
        try:
            return self[member]
        except KeyError:
            return None


class Members(Protocol):
    """Anything with named members: a document, or its dictionary form on the wire."""

    def __getitem__(self, member: str, /) -> Any: ...

    def get(self, member: str, /) -> Any:
        """Return a member, None if it is missing."""


def to_json(value: Any) -> bytes:
    """Return a document, or dictionaries and lists of documents, as JSON. Raises TypeError for other values."""
    return orjson.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    raise TypeError(f"{type(value).__name__} is not a document")
