"""webhook messages for ended runs, checks of results, bytes on disk."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhook_delivery",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("run", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_webhook_delivery_due", "webhook_delivery", ["status", "next_at"])
    op.create_index("ix_webhook_delivery_run", "webhook_delivery", ["run_id"])
    op.create_table(
        "webhook_attempt",
        sa.Column("delivery_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["delivery_id"], ["webhook_delivery.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("delivery_id", "number"),
    )
    op.create_table(
        "run_check",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("passed", sa.Boolean(), nullable=True),
        sa.Column("measured", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("limit", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("unit", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "name"),
    )
    op.create_index("ix_run_check_trend", "run_check", ["kind", "name", "run_id"])
    op.create_table(
        "run_facts",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=True),
        sa.Column("files", sa.Integer(), nullable=True),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("checks_read", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id"),
    )
