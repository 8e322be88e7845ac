"""What one transaction of an intake writes, gathered over all files: a statement per table, however many ranks."""

from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import bindparam
from sqlmodel import Session, SQLModel

from app.db import insert_rows, table_of
from app.runs.models import MalformedLine, MetricChunk, RankRow, RunEvent

Row = tuple[Any, ...]
EVENT: Final = ("run_id", "id", "stage", "attempt", "rank", "type", "line")
CHUNK: Final = ("run_id", "first_event_id", "key", "rank", "stage", "attempt", "count", "steps", "points")
MALFORMED: Final = ("run_id", "stage", "attempt", "rank", "offset", "text", "why")
REPORTED: Final = (
    *("pid", "host", "node", "local_rank", "device", "phase", "step", "last_seen", "stalled"),
    *("offset", "events", "malformed"),
)
"""Columns of a rank that its file determines."""


def _changing(model: type[SQLModel], keys: tuple[str, ...], values: tuple[str, ...]) -> Any:
    """Return an UPDATE of many rows: parameters `old_<key>` find each, parameters named as columns are its values."""
    table = table_of(model)
    found = [table.c[name] == bindparam(f"old_{name}") for name in keys]
    return table.update().where(*found).values({name: bindparam(name) for name in values})


# Built once: building a statement costs more than running it.
GROW_CHUNK: Final = _changing(MetricChunk, ("run_id", "first_event_id", "key"), ("count", "steps", "points"))
# At the expected position, or the events between would be missing, or be there twice.
MOVE_RANK: Final = _changing(RankRow, ("run_id", "stage", "attempt", "rank", "offset"), REPORTED)


class Rewound(RuntimeError):
    """The database has less than was stored: a server lost its last commits, or was restored. Nothing was written."""


@dataclass(slots=True, kw_only=True)
class Rows:
    """Rows to insert, and rows to change."""

    events: list[Row] = field(default_factory=list)
    chunks: list[Row] = field(default_factory=list)
    grown: list[dict[str, Any]] = field(default_factory=list)
    malformed: list[Row] = field(default_factory=list)
    new_ranks: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)

    def write(self, session: Session) -> None:
        """Write everything in the caller's transaction.

        Raises Rewound if a rank is not where it was left; then the caller's transaction must not be committed.
        """
        connection = session.connection()
        insert_rows(connection, table_of(RunEvent), EVENT, self.events)
        insert_rows(connection, table_of(MetricChunk), CHUNK, self.chunks)
        insert_rows(connection, table_of(MalformedLine), MALFORMED, self.malformed)
        if self.grown:
            connection.execute(GROW_CHUNK, self.grown)
        if self.new_ranks:
            connection.execute(table_of(RankRow).insert(), self.new_ranks)
        if self.ranks:
            moved = connection.execute(MOVE_RANK, self.ranks).rowcount
            if moved != len(self.ranks):
                raise Rewound(f"{len(self.ranks) - moved} of {len(self.ranks)} ranks are not where they were left")
