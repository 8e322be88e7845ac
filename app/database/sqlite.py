"""What is SQLite's alone: pragmas, and write transactions that take the one lock at their start."""

from typing import Any, Final

from sqlalchemy import URL, Engine, Table, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

BUSY_TIMEOUT_MS: Final = 30_000
"""How long a writer waits for the lock in total."""
PATIENCE_MS: Final = 4_000
"""Of this, the part before checking whether a stopped worker holds the lock."""


def make_engine(url: URL) -> Engine:
    """Return an engine for a file whose folder exists: WAL mode, foreign keys, and transactions begun by us."""
    engine = create_engine(url, connect_args={"timeout": PATIENCE_MS / 1000, "check_same_thread": False})
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: Any, _record: ConnectionPoolEntry) -> None:
    # The driver must not open transactions itself: `_begin` decides which kind.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout = {PATIENCE_MS}",
        "journal_mode = WAL",
        "synchronous = NORMAL",
        "foreign_keys = ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Any) -> None:
    # A deferred transaction that turns into a write fails at once with "database is locked" if another writer was
    # faster, whatever the busy timeout; an immediate one waits its turn.
    options = connection.get_execution_options()
    if options.get("ddp_audit_write", False):
        _begin_writing(connection, options.get("ddp_audit_patience_ms", BUSY_TIMEOUT_MS))
    else:
        connection.exec_driver_sql("BEGIN")


def _begin_writing(connection: Any, patience: int) -> None:
    try:
        _begin_within(connection, min(patience, PATIENCE_MS))
    except OperationalError as error:
        if patience <= PATIENCE_MS or not is_locked(error):
            raise
        from app.runs.workers import continue_stopped_workers  # its models import this package

        continue_stopped_workers(connection)
        _begin_within(connection, patience - PATIENCE_MS)


def _begin_within(connection: Any, milliseconds: int) -> None:
    if milliseconds != PATIENCE_MS:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {milliseconds}")
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    finally:
        if milliseconds != PATIENCE_MS:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {PATIENCE_MS}")


def is_locked(error: OperationalError) -> bool:
    """Return whether SQLite refused because another connection holds the write lock."""
    return "database is locked" in str(error.orig)


def insert_rows(connection: Any, table: Table, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Insert rows of values that the driver knows."""
    # Directly to the driver: building and compiling a dictionary per row costs more than the insert itself.
    names = ", ".join(f'"{column}"' for column in columns)
    marks = ", ".join("?" * len(columns))
    connection.exec_driver_sql(f'INSERT INTO "{table.name}" ({names}) VALUES ({marks})', rows)  # noqa: S608  # names of ours
