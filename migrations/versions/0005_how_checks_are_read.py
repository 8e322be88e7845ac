"""how the number of each kept check is held against its limit."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The defaults are for rows that are there: nothing says how their checks were meant, so they are read as before.
    op.add_column("run_check", sa.Column("relation", sa.String(), nullable=False, server_default="at_most"))
    op.add_column("run_check", sa.Column("strict", sa.Boolean(), nullable=False, server_default=sa.false()))
