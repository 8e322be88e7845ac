"""Database engine and sessions, the same for SQLite and PostgreSQL; what differs is in `app.database`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Engine, Table, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlmodel import Session, SQLModel

import app.database.postgres as server
import app.database.sqlite as file
from app.clock import now
from app.database.address import shown
from app.database.columns import UtcDateTime, encoded
from app.database.postgres import Lock
from app.database.version import DataVersion
from app.settings import Settings

__all__ = ["DataVersion", "Engine", "Lock", "Session", "UtcDateTime"]
"""Names re-exported for packages that contain no SQL."""

BUSY_TIMEOUT_MS: Final = file.BUSY_TIMEOUT_MS
ASIDE_MS: Final = 1_000
"""How long a read request waits for a write lock to store what it computed for later requests."""
Unavailable: Final = (OperationalError, InterfaceError, InternalError, PoolTimeout)
"""Errors that `why_unavailable` may explain."""


def create_database_engine(settings: Settings) -> Engine:
    """Return an engine for `settings.database`. Creates the data directory."""
    url = settings.database
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    return server.make_engine(url) if url.get_backend_name() == server.NAME else file.make_engine(url)


def _on_server(bound: Engine | Connection) -> bool:
    return bound.dialect.name == server.NAME


def _reader(engine: Engine) -> Engine:
    return engine.execution_options(**server.READING) if _on_server(engine) else engine


@contextmanager
def read_session(engine: Engine) -> Iterator[Session]:
    """Yield a session on one consistent snapshot; nothing is committed."""
    with Session(_reader(engine)) as session:
        yield session


@contextmanager
def own_session(engine: Engine) -> Iterator[Session]:
    """Yield such a session on a connection outside the pool: for answers whose pace the client sets."""
    with _reader(engine).connect() as connection:
        connection.detach()
        with Session(connection) as session:
            yield session


@contextmanager
def write_session(engine: Engine, *, patience_ms: int | None = None, unhurried: bool = False) -> Iterator[Session]:
    """Yield a session that may write; commits at the end, rolls back on an exception.

    On SQLite it holds the one write lock. On PostgreSQL others write at the same time: what is read in order to be
    written is read through `hold`, or under a `lock`. Waits for locks `patience_ms`, or half a minute. `unhurried`
    transactions copy files and may be silent for long; the server ends others after half a minute.
    Raises OperationalError if a lock is not obtained.
    """
    options: dict[str, Any] = {"ddp_audit_patience_ms": BUSY_TIMEOUT_MS if patience_ms is None else patience_ms}
    if unhurried:
        options["ddp_audit_idle_ms"] = 0
    with (
        engine.connect().execution_options(ddp_audit_write=True, **options) as connection,
        Session(connection) as session,
    ):
        with session.begin():
            yield session
        connection.commit()


HOLD: Final[dict[str, Any]] = {"key_share": True}
"""Arguments of `with_for_update` for rows that are read in order to be changed; SQLite ignores it.

Others may still insert rows that refer to them, and may not change or delete them before the transaction ends."""


def lock(session: Session, which: Lock, *, shared: bool = False) -> None:
    """Take a lock that no row stands for until the end of the transaction; SQLite's write lock contains it."""
    connection = session.connection()
    if _on_server(connection):
        server.lock(connection, which, shared=shared)


def database_time(session: Session) -> datetime:
    """Return the time by which leases are granted and judged: the server's, for workers on several hosts.

    SQLite runs inside each process: its clock is the host's.
    """
    if not _on_server(session.connection()):
        return now()
    moment: datetime = session.execute(select(func.clock_timestamp(type_=UtcDateTime))).scalar_one()
    return moment


def on_server(session: Session) -> bool:
    """Return whether other hosts may use the same database."""
    return _on_server(session.connection())


def server_is_settled(session: Session, seconds: float) -> bool:
    """Return whether the server has run for so long that everybody had the time to report; a file always has."""
    if not on_server(session):
        return True
    began: datetime = session.execute(select(func.pg_postmaster_start_time(type_=UtcDateTime))).scalar_one()
    return (database_time(session) - began).total_seconds() > seconds


def insert_rows(connection: Connection, table: Table, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Insert many rows of values as Python has them, much faster than a statement per row."""
    if rows:
        insert = server.insert_rows if _on_server(connection) else file.insert_rows
        insert(connection, table, columns, encoded(connection, table, columns, rows))


def table_of(model: type[SQLModel]) -> Table:
    """Return the table of a model."""
    table: Table = model.__table__  # type: ignore[attr-defined]
    return table


def put(session: Session, row: SQLModel, *, replace: bool = True) -> None:
    """Insert a row, or with `replace` overwrite that with the same key; two writers at once do not fail."""
    table = table_of(type(row))
    insert = postgresql.insert if _on_server(session.connection()) else sqlite.insert
    values, keys = row.model_dump(), [column.name for column in table.primary_key]
    statement: Any = insert(table).values(**values)
    others = {name: value for name, value in values.items() if name not in keys}
    if replace and others:
        statement = statement.on_conflict_do_update(index_elements=keys, set_=others)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    session.execute(statement)


def why_unavailable(error: Exception) -> str:
    """Return why the database cannot be used now, if `error` says so; empty for any other error.

    The causes are temporary and not a fault of program or user: another program's lock, a full disk, a server that is
    away, or too many requests.
    """
    if isinstance(error, PoolTimeout):
        return "too many requests wait for it"
    if not isinstance(error, DBAPIError):
        return ""
    if hasattr(error.orig, "sqlstate"):
        return server.reason_of(error)
    return str(error.orig) if isinstance(error, OperationalError) else ""


def place_of(settings: Settings) -> str:
    """Return which database the settings name, and where; without its password."""
    if settings.database_url:
        return f"the database {shown(settings.database)} (DDP_AUDIT_DATABASE_URL)"
    return f"the database in {settings.data_dir}"


def as_message(error: Exception) -> str:
    """Return one line for the operator if `error` says that the database cannot be used now, else nothing."""
    if not why_unavailable(error):
        return ""
    setting = " (DDP_AUDIT_DATABASE_URL)" if hasattr(getattr(error, "orig", None), "sqlstate") else ""
    return f"the database{setting} cannot be used: {first_line(error)}"


def first_line(error: Exception) -> str:
    """Return the first line of a database error for the operator; addresses in it contain no password."""
    lines: Sequence[str] = str(getattr(error, "orig", None) or error).splitlines()
    return lines[0] if lines else type(error).__name__
