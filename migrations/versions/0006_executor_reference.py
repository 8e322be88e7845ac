"""the executor's own reference to an attempt, instead of the pid of a supervisor."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("stage_attempt", sa.Column("reference", sa.JSON(), nullable=True))
    _fill(op.get_bind())
    for name in ("shim_pid", "shim_start", "boot_id"):
        op.drop_column("stage_attempt", name)


def _fill(connection: sa.Connection) -> None:
    """Write pid, start time and boot of every supervisor in the format of the local executor."""
    found = connection.execute(
        sa.text("SELECT run_id, stage, attempt, shim_pid, shim_start, boot_id FROM stage_attempt WHERE shim_pid > 0")
    ).all()
    change = sa.text(
        "UPDATE stage_attempt SET reference = :reference WHERE run_id = :run AND stage = :stage AND attempt = :attempt"
    )
    for run, stage, attempt, pid, start, boot in found:
        reference = json.dumps({"pid": pid, "start": int(start or 0), "boot": boot or ""})
        connection.execute(change, {"reference": reference, "run": run, "stage": stage, "attempt": attempt})
