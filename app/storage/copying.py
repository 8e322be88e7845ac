"""Copying a whole record to another database, SQLite or PostgreSQL, in one transaction, compared by digests."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, Table, func, inspect, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import SQLModel

from app.database import postgres, sqlite
from app.database.address import read_address, shown
from app.db import first_line, insert_rows, read_session
from app.runs.errors import Conflict, NotFound, refused
from app.runs.workers import all_live_workers
from app.schema import check_server, schema_versions, upgrade

ROWS_AT_ONCE: Final = 2000
MODULUS: Final = 2**256
COUNTED: Final = ("run", "webhook_delivery", "audit_entry")
"""Tables whose rows are numbered by the database; a number that was used once is not used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """One table as it was read, or as it was written."""

    rows: int
    digest: str
    """Sum of the SHA-256 of every row, so independent of their order."""


def address(given: str, field: str) -> URL:
    """Return the address that a URL or the path of a SQLite file names. Raises Refused naming the field."""
    if "://" not in given:
        return URL.create("sqlite", database=str(Path(given).expanduser().absolute()))
    try:
        return read_address(given)
    except ValueError as error:
        raise refused(field, str(error)) from None


def copy_database(source: URL, target: URL) -> dict[str, Copied]:
    """Copy every row, and return what was copied by table.

    The target may be an empty database, one without any row, or no file yet; its schema is made in the same
    transaction. Raises NotFound without a source; Conflict if both are the same, if the target holds rows, if a worker
    uses either of them, if the source is not at the newest schema, if one of them cannot be used, or if what was
    written differs from what was read. The target is unchanged then.
    """
    if _place(source) == _place(target):
        raise Conflict("same_database", f"source and target are the same database, {shown(source)}")
    if source.get_backend_name() == "sqlite" and not Path(str(source.database)).is_file():
        raise NotFound("no_database", f"there is no database {shown(source)}")
    with _new_file(target), _engine(source) as origin, _engine(target) as made:
        _check_source(origin)
        with read_session(origin) as session, made.connect() as connection:
            writing = connection.execution_options(ddp_audit_write=True, ddp_audit_idle_ms=0)
            with writing.begin():
                _make_ready(writing)
                return _copy(session.connection(), writing)


def _place(url: URL) -> tuple[Any, ...]:
    if url.get_backend_name() == "sqlite":
        return ("sqlite", Path(str(url.database)).resolve())
    host = "127.0.0.1" if url.host in {None, "localhost"} else url.host
    return (url.get_backend_name(), host, url.port or 5432, url.database)


@contextmanager
def _new_file(target: URL) -> Iterator[None]:
    """Remove a SQLite file that did not exist before, unless the copy succeeds."""
    path = Path(str(target.database))
    if target.get_backend_name() != "sqlite" or path.exists():
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for end in ("", "-wal", "-shm"):
            Path(f"{path}{end}").unlink(missing_ok=True)
        raise


@contextmanager
def _engine(url: URL) -> Iterator[Engine]:
    engine = postgres.make_engine(url) if url.get_backend_name() == postgres.NAME else sqlite.make_engine(url)
    try:
        yield engine
    except SQLAlchemyError as error:
        raise Conflict("database_unusable", f"{shown(url)} cannot be used: {first_line(error)}") from error
    finally:
        engine.dispose()


def _check_source(origin: Engine) -> None:
    present, newest = schema_versions(origin)
    if present != newest:
        how = "run `ddp-audit migrate` on it first" if present else "it holds no record"
        raise Conflict("wrong_schema", f"{shown(origin.url)} is at schema {present}, {newest} is needed: {how}")
    _check_nobody_works(origin)


def _check_nobody_works(engine: Engine) -> None:
    with read_session(engine) as session:
        working = all_live_workers(session)
    if working:
        where = ", ".join(f"process {worker.pid} on {worker.host}" for worker in working)
        raise Conflict("in_use", f"a worker uses {shown(engine.url)} ({where}): stop the service first")


def _make_ready(target: Connection) -> None:
    check_server(target)
    present, newest = schema_versions(target)
    tables = inspect(target).get_table_names()
    if present not in {None, newest} or (present is None and tables):
        raise Conflict(
            "wrong_schema",
            f"{shown(target.engine.url)} is not empty: it has schema {present or 'unknown'}, {newest} is needed; "
            "create an empty database",
        )
    upgrade(target)
    held = [table.name for table in _tables() if target.scalar(select(func.count()).select_from(table))]
    if held:
        raise Conflict(
            "target_not_empty", f"{shown(target.engine.url)} is not empty: there are rows in {', '.join(held)}"
        )


def _tables() -> list[Table]:
    return list(SQLModel.metadata.sorted_tables)


def _copy(origin: Connection, target: Connection) -> dict[str, Copied]:
    found = {}
    for table in _tables():
        read, written = _copy_table(origin, target, table), _measure(target, table)
        if read != written:
            raise Conflict(
                "copy_differs",
                f"table {table.name} differs after copying: {read.rows} rows with digest {read.digest[:16]} were read, "
                f"{written.rows} with {written.digest[:16]} written; nothing was kept",
            )
        found[table.name] = read
    for name in COUNTED:
        _set_counter(target, name, _counter(origin, name))
    return found


def _copy_table(origin: Connection, target: Connection, table: Table) -> Copied:
    columns = tuple(column.name for column in table.columns)
    total = Total()
    for rows in _pages(origin, table):
        for row in rows:
            total.add(row)
        insert_rows(target, table, columns, rows)
    return total.copied()


def _measure(connection: Connection, table: Table) -> Copied:
    total = Total()
    for rows in _pages(connection, table):
        for row in rows:
            total.add(row)
    return total.copied()


def _pages(connection: Connection, table: Table) -> Iterator[list[tuple[Any, ...]]]:
    with connection.execute(select(table).execution_options(yield_per=ROWS_AT_ONCE)) as result:
        for rows in result.partitions(ROWS_AT_ONCE):
            yield [tuple(row) for row in rows]


class Total:
    """Number and digest of rows."""

    def __init__(self) -> None:
        self._rows = self._sum = 0

    def add(self, row: tuple[Any, ...]) -> None:
        """Count a row."""
        self._rows += 1
        self._sum += int.from_bytes(hashlib.sha256(repr(row).encode(errors="surrogatepass")).digest(), "big")

    def copied(self) -> Copied:
        """Return what was counted."""
        return Copied(rows=self._rows, digest=f"{self._sum % MODULUS:064x}")


def _counter(connection: Connection, table: str) -> int:
    """Return the last number that the database has given to a row of a table, 0 before the first."""
    if connection.dialect.name == postgres.NAME:
        found = connection.execute(text(f'SELECT last_value, is_called FROM "{table}_id_seq"')).one()  # noqa: S608  # ours
        return int(found[0]) if found[1] else 0
    kept = connection.execute(text("SELECT seq FROM sqlite_sequence WHERE name = :name"), {"name": table}).scalar()
    largest = connection.execute(text(f'SELECT max(id) FROM "{table}"')).scalar()  # noqa: S608  # ours
    return max(int(kept or 0), int(largest or 0))


def _set_counter(connection: Connection, table: str, number: int) -> None:
    if not number:
        return
    if connection.dialect.name == postgres.NAME:
        connection.execute(text(f"SELECT setval('{table}_id_seq', :number)"), {"number": number})
        return
    places = {"name": table, "number": number}
    changed = connection.execute(text("UPDATE sqlite_sequence SET seq = :number WHERE name = :name"), places)
    counted = "AUTOINCREMENT" in str(
        connection.execute(text("SELECT sql FROM sqlite_master WHERE name = :name"), {"name": table}).scalar()
    )
    if counted and not changed.rowcount:
        connection.execute(text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :number)"), places)
