"""duration of each run, with index; index for pinned runs first."""

from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

ROWS_AT_ONCE = 1000


def upgrade() -> None:
    op.add_column("run", sa.Column("took_seconds", sa.Float(), nullable=True))
    _fill(op.get_bind())
    op.create_index("ix_run_took_seconds", "run", ["took_seconds", "id"])
    op.create_index("ix_run_pinned_id", "run", ["pinned", "id"])


def _fill(connection: sa.Connection) -> None:
    """Set the duration of every run with both times; in Python, which is exact to the microsecond everywhere."""
    run = sa.table(
        "run",
        sa.column("id", sa.Integer()),
        sa.column("started_at", sa.DateTime()),
        sa.column("finished_at", sa.DateTime()),
        sa.column("took_seconds", sa.Float()),
    )
    ended = sa.select(run.c.id, run.c.started_at, run.c.finished_at).where(
        run.c.started_at.is_not(None), run.c.finished_at.is_not(None)
    )
    found = [{"number": number, "took": _seconds(begin, end)} for number, begin, end in connection.execute(ended)]
    change = sa.update(run).where(run.c.id == sa.bindparam("number")).values(took_seconds=sa.bindparam("took"))
    for first in range(0, len(found), ROWS_AT_ONCE):
        connection.execute(change, found[first : first + ROWS_AT_ONCE])


def _seconds(begin: datetime, end: datetime) -> float:
    return (end - begin).total_seconds()
