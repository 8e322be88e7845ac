"""Query of the list of runs: filters, order and columns, from a URL or a form."""

from typing import Annotated, Any, Final, Self
from urllib.parse import parse_qs, urlencode

from pydantic import BaseModel, Field, ValidationError

from app.runs.ordering import Order
from app.runs.results.columns import MOST, Column
from app.runs.store import RunFilters
from app.runs.tags import tags_from_text, text_from_tags

COLUMNS: Final = {
    "verdict": "Verdict",
    "state": "State",
    "kind": "Kind",
    "backend": "Backend",
    "device": "Device",
    "created": "Created",
    "finished": "Finished",
    "took": "Took",
    "check": "Main check",
    "notes": "Notes",
}
USUAL: Final = ("verdict", "state", "kind", "backend", "created", "took")
USUAL_ORDER: Final = Order.PINNED
MOST_COLUMNS: Final = len(COLUMNS) + MOST
Words = Annotated[list[Annotated[str, Field(max_length=64)]], Field(default_factory=list, max_length=20)]


class ListQuery(BaseModel):
    """Filters of the list in the URL; empty means all."""

    kind: Words
    state: Words
    verdict: Words
    tag: list[Annotated[str, Field(max_length=1500)]] = Field(default_factory=list, max_length=20)
    """Each item is one or several tags, as `app.runs.tags` reads them."""
    pinned: str = Field("", max_length=8)
    q: str = Field("", max_length=200)
    sort: str = Field("", max_length=16)
    col: list[Annotated[str, Field(max_length=140)]] = Field(default_factory=list, max_length=2 * MOST_COLUMNS)
    cursor: str = Field("", max_length=200)

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the query from a form's field; an invalid one becomes the list without filters."""
        try:
            given = parse_qs(text, max_num_fields=200)
            several = {name: values for name, values in given.items() if name in SEVERAL}
            return cls.model_validate({name: values[-1] for name, values in given.items()} | several)
        except (ValueError, ValidationError):
            return cls.model_validate({})

    def tags(self) -> list[str]:
        """Return the tags that a run must have."""
        return list(dict.fromkeys(tag for text in self.tag for tag in tags_from_text(text)))

    def filters(self) -> RunFilters:
        """Return the filters for the store."""
        return RunFilters(
            state=[word for word in self.state if word],
            kind=[word for word in self.kind if word],
            verdict=[word for word in self.verdict if word],
            tag=self.tags(),
            pinned={"1": True, "0": False}.get(self.pinned),
            q=self.q,
        )

    def order(self) -> Order:
        """Return the order of the list; an invalid one means pinned runs first, then the newest."""
        return Order(self.sort) if self.sort in set(Order) else USUAL_ORDER

    def columns(self) -> list[str]:
        """Return the columns to show: usual ones in fixed order, then named ones; invalid ones are left out."""
        return [name for name in COLUMNS if name in self.col] + [item.text for item in self._named()] or list(USUAL)

    def extra(self) -> list[Column]:
        """Return the columns that are not fields of a run: its main check, checks and parameters by name."""
        found = (Column.read(text) for text in self.columns())
        return [column for column in found if column is not None]

    def unknown(self) -> list[str]:
        """Return requested columns that do not exist."""
        return [text for text in dict.fromkeys(self.col) if text and text not in COLUMNS and Column.read(text) is None]

    def _named(self) -> list[Column]:
        found = (Column.read(text) for text in dict.fromkeys(self.col))
        return [column for column in found if column is not None and column.of != "main"][:MOST]

    def address(self, **changes: str | list[str]) -> str:
        """Return the query string with `changes`, without empty values and defaults."""
        values: dict[str, Any] = {
            **self.model_dump(),
            "tag": [text_from_tags([tag]) for tag in self.tags()],
            "col": [] if self.columns() == list(USUAL) else self.columns(),
            "sort": "" if self.order() is USUAL_ORDER else self.order().value,
            **changes,
        }
        kept = {name: [item for item in _listed(value) if item] for name, value in values.items()}
        return urlencode({name: items for name, items in kept.items() if items}, doseq=True)

    def with_tag(self, tag: str) -> str:
        """Return the query string of the list filtered by one more tag, at its first page."""
        tags = list(dict.fromkeys([*self.tags(), tag]))
        return self.address(tag=[text_from_tags([item]) for item in tags], cursor="")


SEVERAL: Final = ("kind", "state", "verdict", "tag", "col")


def _listed(value: str | list[str]) -> list[str]:
    return value if isinstance(value, list) else [value]
