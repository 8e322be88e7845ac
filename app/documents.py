"""What every document of the API is: a model that builds, checks and describes it."""

from typing import Any, Protocol

import orjson
from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """A document; its fields are the members of the JSON, in their order."""

    model_config = ConfigDict(frozen=True, serialize_by_alias=True, validate_by_name=True, validate_by_alias=True)

    def __getitem__(self, member: str) -> Any:
        """Return a member by the name it has in the JSON, as tables and templates ask for it. Raises KeyError."""
        fields = type(self).model_fields
        if member in fields and fields[member].alias is None:
            return getattr(self, member)
        for name, field in fields.items():
            if field.alias == member:
                return getattr(self, name)
        raise KeyError(member)

    def get(self, member: str) -> Any:
        """Return a member by the name it has in the JSON, None for one that this document does not have."""
        try:
            return self[member]
        except KeyError:
            return None


class Members(Protocol):
    """What has named members: a document, or the dictionary it is on the wire."""

    def __getitem__(self, member: str, /) -> Any: ...

    def get(self, member: str, /) -> Any:
        """Return a member, None for one that is not there."""


def to_json(value: Any) -> bytes:
    """Return a document, or dictionaries and lists with documents in them, as JSON. Raises TypeError for others."""
    return orjson.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    raise TypeError(f"{type(value).__name__} is not a document")
