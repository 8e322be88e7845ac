"""Column types that mean the same on SQLite and PostgreSQL: times in UTC, 64-bit numbers, text with any character."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Dialect,
    Integer,
    String,
    Table,
    Text,
    TypeDecorator,
    event,
)
from sqlmodel import AutoString, SQLModel

ESCAPE: Final = "\x1a"
"""Starts a two-character code in PostgreSQL's text, which cannot hold U+0000."""
CODES: Final = {"\0": f"{ESCAPE}0", ESCAPE: f"{ESCAPE}1"}


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC datetimes; SQLite itself keeps no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """Refuse naive datetimes, store UTC."""
        if value is not None and value.tzinfo is None:
            raise ValueError("naive datetime; use app.clock.now()")
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any, _dialect: Dialect) -> datetime | None:
        """Return an aware datetime."""
        if value is None:
            return None
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def escaped(value: str | None) -> str | None:
    """Return text without U+0000 from which `unescaped` makes the same text again."""
    if value is None or ("\0" not in value and ESCAPE not in value):
        return value
    return value.replace(ESCAPE, CODES[ESCAPE]).replace("\0", CODES["\0"])


def unescaped(value: str | None) -> str | None:
    """Return the text that `escaped` was given."""
    if value is None or ESCAPE not in value:
        return value
    return value.replace(CODES["\0"], "\0").replace(CODES[ESCAPE], ESCAPE)


Processor = Callable[[str | None], str | None]


class Words(TypeDecorator[str]):
    """Text with any character: a rank's last words may contain U+0000, and the run must still end."""

    impl = String
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Processor | None:
        """Escape for PostgreSQL; SQLite stores every character, at no cost."""
        return escaped if dialect.name == "postgresql" else None

    def result_processor(self, dialect: Dialect, _coltype: object) -> Processor | None:
        """Undo it."""
        return unescaped if dialect.name == "postgresql" else None


class LongWords(Words):
    """The same as `Text`."""

    impl = Text
    cache_ok = True


Rows = list[tuple[Any, ...]]


def encoded(connection: Connection, table: Table, columns: Sequence[str], rows: Rows) -> Rows:
    """Return rows as the driver takes them, for statements that do not pass through SQLAlchemy."""
    kinds = [table.c[name].type.dialect_impl(connection.dialect) for name in columns]
    found = [(place, kind.bind_processor(connection.dialect)) for place, kind in enumerate(kinds)]
    processors = [(place, processor) for place, processor in found if processor is not None]
    if not processors:
        return rows
    changed = []
    for row in rows:
        values = list(row)
        for place, processor in processors:
            values[place] = processor(values[place])
        changed.append(tuple(values))
    return changed


WHOLE: Final = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits everywhere; SQLite's INTEGER has them, and no other type of its own numbers rows by itself."""


@event.listens_for(Column, "after_parent_attach")
def _same_everywhere(column: Column[Any], table: Any) -> None:
    """Give every number and text of our tables such a type, so that no new column can forget it."""
    if not isinstance(table, Table) or table.metadata is not SQLModel.metadata:
        return
    if isinstance(column.type, Text):
        column.type = LongWords()
    elif isinstance(column.type, String | AutoString):
        column.type = Words()
    elif type(column.type) is Integer:
        column.type = WHOLE
