"""Noticing that the database was written to, without reading it: cheap enough for ten checks a second."""

from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.pool import PoolProxiedConnection


class DataVersion:
    """Detects writes of other connections to the database, much faster than a query; holds its own connection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._of_file = engine.dialect.name == "sqlite"
        self._raw: PoolProxiedConnection | None = None
        self._connection: Connection | None = None

    @property
    def instant(self) -> bool:
        """Whether reading takes microseconds; a server is asked over the network, and may be away."""
        return self._of_file

    def read(self) -> object:
        """Return a value that changes with every commit of another connection."""
        return self._read_file() if self._of_file else self._read_server()

    def _read_file(self) -> int:
        if self._raw is None:
            self._raw = self._engine.raw_connection()
        cursor = self._raw.cursor()
        try:
            return int(cursor.execute("PRAGMA data_version").fetchone()[0])
        finally:
            cursor.close()

    def _read_server(self) -> str:
        # The transactions a query would see now, which change with every commit and touch no table. A notification per
        # commit would make the commits of all writers wait for each other.
        if self._connection is None:
            self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        found: Any = self._connection.exec_driver_sql("SELECT pg_current_snapshot()::text").scalar_one()
        return str(found)

    def close(self) -> None:
        """Return the connection to the pool; the next reading takes another one, whose numbers are not comparable."""
        for connection in (self._raw, self._connection):
            if connection is not None:
                connection.close()
        self._raw = self._connection = None
