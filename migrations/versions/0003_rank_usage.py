"""resource usage of ranks, index of runs by end, index of the audit log by run."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rank_usage",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("cpu_seconds", sa.Float(), nullable=False),
        sa.Column("rss_bytes", sa.BigInteger(), nullable=False),
        sa.Column("gpu_bytes", sa.BigInteger(), nullable=True),
        sa.Column("gpu_percent", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "stage", "attempt", "rank", "at"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_run_finished_at", "run", ["finished_at", "id"])
    op.create_index("ix_audit_entry_run", "audit_entry", ["run_id", "id"])
