"""how the number of each stored check is compared with its limit."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The defaults are for existing rows: they do not say how to read their checks, so they are read as before.
    op.add_column("run_check", sa.Column("relation", sa.String(), nullable=False, server_default="at_most"))
    op.add_column("run_check", sa.Column("strict", sa.Boolean(), nullable=False, server_default=sa.false()))
