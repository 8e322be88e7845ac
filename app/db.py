"""Database engine and sessions: SQLite in WAL mode; every write transaction takes its lock at the start."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Dialect, Engine, TypeDecorator, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection
from sqlmodel import Session

from app.settings import Settings

__all__ = ["Engine", "Session"]
"""Names re-exported for packages that contain no SQL."""

BUSY_TIMEOUT_MS = 30_000
"""How long a writer waits for the lock in total."""
PATIENCE_MS = 4_000
"""Of this, the part before checking whether a stopped worker holds the lock."""
ASIDE_MS = 1_000
"""How long a read request waits for the write lock to store what it computed for later requests."""


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC datetimes; SQLite itself keeps no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """Refuse naive datetimes, store UTC."""
        if value is not None and value.tzinfo is None:
            raise ValueError("naive datetime; use app.clock.now()")
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any, _dialect: Dialect) -> datetime | None:
        """Return an aware datetime."""
        if value is None:
            return None
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def create_database_engine(settings: Settings) -> Engine:
    """Return an engine for `settings.database`, with the pragmas SQLite needs. Creates the data directory."""
    url = settings.database
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, connect_args={"timeout": PATIENCE_MS / 1000, "check_same_thread": False})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: ConnectionPoolEntry) -> None:
    # The driver must not open transactions itself: `_begin_sqlite` decides which kind.
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


def _begin_sqlite(connection: Any) -> None:
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
        from app.runs.workers import continue_stopped_workers  # its models import this module

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


@contextmanager
def read_session(engine: Engine) -> Iterator[Session]:
    """Yield a session on one consistent snapshot; nothing is committed."""
    with Session(engine) as session:
        yield session


@contextmanager
def own_session(engine: Engine) -> Iterator[Session]:
    """Yield such a session on a connection outside the pool: for answers whose pace the client sets."""
    with engine.connect() as connection:
        connection.detach()
        with Session(connection) as session:
            yield session


@contextmanager
def write_session(engine: Engine, *, patience_ms: int | None = None) -> Iterator[Session]:
    """Yield a session that holds the write lock; commits at the end, rolls back on an exception.

    Waits for the lock as long as SQLite is configured to, or `patience_ms`. Raises OperationalError if the lock is not
    obtained.
    """
    options = {"ddp_audit_patience_ms": BUSY_TIMEOUT_MS if patience_ms is None else patience_ms}
    with (
        engine.connect().execution_options(ddp_audit_write=True, **options) as connection,
        Session(connection) as session,
    ):
        with session.begin():
            yield session
        connection.commit()


def why_unavailable(error: Exception) -> str:
    """Return why the database cannot be used now, if `error` says so; empty for any other error.

    The causes are temporary and not a fault of program or user: another program's lock, a full disk, or too many
    requests.
    """
    if not isinstance(error, OperationalError | PoolTimeout):
        return ""
    return str(getattr(error, "orig", "")) or "too many requests wait for it"


class DataVersion:
    """Detects writes of other connections to the database, much faster than a query; holds its own connection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: PoolProxiedConnection | None = None

    def read(self) -> int | None:
        """Return a number that changes with every commit of another connection; None if the database has none."""
        if self._engine.dialect.name != "sqlite":
            return None
        if self._connection is None:
            self._connection = self._engine.raw_connection()
        cursor = self._connection.cursor()
        try:
            return int(cursor.execute("PRAGMA data_version").fetchone()[0])
        finally:
            cursor.close()

    def close(self) -> None:
        """Return the connection to the pool; the next reading takes another one, whose numbers are not comparable."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
