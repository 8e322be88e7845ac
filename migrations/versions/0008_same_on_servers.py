"""64-bit numbers, and text sorted by code point, on PostgreSQL as SQLite has always had them."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name != "postgresql":
        return
    found = sa.inspect(connection)
    for table in found.get_table_names():
        for column in found.get_columns(table):
            kind = column["type"]
            if isinstance(kind, sa.Integer) and not isinstance(kind, sa.BigInteger):
                op.alter_column(table, column["name"], type_=sa.BigInteger())
                if column["default"] and "nextval" in column["default"]:
                    op.execute(f'ALTER SEQUENCE "{table}_{column["name"]}_seq" AS BIGINT')
            elif isinstance(kind, sa.String) and table != "alembic_version":
                op.alter_column(table, column["name"], type_=type(kind)(collation="C"))
    for name in ("steps", "points"):  # packed numbers: trying to compress them takes longer than storing them
        op.execute(f"ALTER TABLE metric_chunk ALTER COLUMN {name} SET STORAGE EXTERNAL")
