"""What is PostgreSQL's alone: connections, bounded waits of write transactions, bulk writes, and why it refuses."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, text
from sqlalchemy.exc import DBAPIError, OperationalError

NAME: Final = "postgresql"
DRIVER: Final = "postgresql+psycopg"
INSTALL: Final = "pip install 'ddp-audit[postgres]'"
WAIT_MS: Final = 30_000
"""How long a write transaction waits for a row that another one has locked."""
IDLE_MS: Final = 30_000
"""After this long without a statement the server ends a write transaction: that of a stopped or vanished worker, whose
locks would otherwise keep its runs from being taken over."""
CONNECTION: Final = {
    "application_name": "ddp-audit",
    "client_encoding": "utf8",
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Defaults for what the address does not say: a server that vanishes without a word is noticed within a minute."""
READING: Final = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
"""Options of a connection whose transactions see one snapshot, as they always do in SQLite."""
LOCKS: Final = 0x64647061
"""First half of the keys of our advisory locks; other programs may use the same database."""


class Lock(IntEnum):
    """Locks for what no single row stands for; SQLite needs none of them."""

    ADMISSION = 1
    """Which runs may start: limits hold per database, however many workers claim."""
    RUN_FOLDERS = 2
    """Folders of runs whose rows are not visible yet: shared by those who record runs, alone for removing orphans."""
    MIGRATION = 3


REASONS: Final = {
    "08": "the database server cannot be reached",
    "25006": "the database server accepts no writes",
    "25P03": "the transaction was idle for too long",
    "28": "the database server rejects user or password",
    "3D": "the database does not exist",
    "40": "another transaction changed the same rows",
    "53100": "the disk of the database server is full",
    "53300": "the database server has too many connections",
    "53": "the database server is short of a resource",
    "55P03": "another transaction holds the row",
    "57": "the database server is starting or stopping",
    "58": "the database server has failed",
}
"""By SQLSTATE or its class."""


def make_engine(url: URL) -> Engine:
    """Return an engine; connects to nothing yet."""
    defaults = {name: value for name, value in CONNECTION.items() if name not in url.query}
    engine = create_engine(url, pool_pre_ping=True, isolation_level="READ COMMITTED", connect_args=defaults)
    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get("ddp_audit_write", False):
        waits = {
            "lock": options.get("ddp_audit_patience_ms", WAIT_MS),
            "idle": options.get("ddp_audit_idle_ms", IDLE_MS),
        }
        connection.exec_driver_sql(
            "SELECT set_config('lock_timeout', %(lock)s::text, true),"
            " set_config('idle_in_transaction_session_timeout', %(idle)s::text, true)",
            waits,
        )


def lock(connection: Connection, which: Lock, *, shared: bool) -> None:
    """Take an advisory lock until the end of the transaction."""
    function = "pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock"
    connection.execute(text(f"SELECT {function}(:place, :which)"), {"place": LOCKS, "which": int(which)})


def insert_rows(connection: Connection, table: Table, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows of values that the driver knows by COPY, several times faster than a statement per row.

    Raises DBAPIError, as a statement does.
    """
    names = ", ".join(f'"{name}"' for name in columns)
    statement = f'COPY "{table.name}" ({names}) FROM STDIN'
    driver: Any = connection.connection.driver_connection
    faults = connection.dialect.loaded_dbapi.Error
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)
    except faults as error:
        gone = connection.dialect.is_disconnect(error, driver, None)
        raise DBAPIError.instance(statement, None, error, faults, connection_invalidated=gone) from error


def reason_of(error: DBAPIError) -> str:
    """Return why the server could not do what was asked, without its address; empty if the fault is the program's."""
    state = getattr(error.orig, "sqlstate", None) or ""
    for code in (state, state[:2]):
        if code in REASONS:
            return REASONS[code]
    if error.connection_invalidated or (not state and isinstance(error, OperationalError)):
        return REASONS["08"]
    return ""
