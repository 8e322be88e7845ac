"""Bringing a database to the newest schema, and refusing one that is newer than this program."""

import fcntl
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

import migrations
from app.database import postgres
from app.db import create_database_engine
from app.settings import Settings

OLDEST_SERVER: Final = 13
"""Major version of PostgreSQL."""


class DatabaseRefused(RuntimeError):
    """The database is not one this program can use."""


class SchemaTooNew(DatabaseRefused):
    """The database was written by a newer version of the program."""


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = connection
    return config


def schema_versions(bound: Engine | Connection) -> tuple[str | None, str]:
    """Return (version of the database, newest version this program knows)."""
    if isinstance(bound, Engine):
        with bound.connect() as connection:
            return schema_versions(connection)
    present = MigrationContext.configure(bound).get_current_revision()
    newest = ScriptDirectory.from_config(_config()).get_current_head()
    if newest is None:
        raise RuntimeError("the program has no migrations: its installation is incomplete")
    return present, newest


def known_versions() -> set[str]:
    """Return every version this program can read and migrate to the newest."""
    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def migrate(settings: Settings) -> tuple[str | None, str]:
    """Bring the database to the newest schema and return (version before, version after).

    Two processes that start together take turns. Raises DatabaseRefused, or what a migration raised; the database is
    then unchanged.
    """
    engine = create_database_engine(settings)
    try:
        with engine.connect() as connection:
            check_server(connection)
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        with (settings.data_dir / ".migrate.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before, newest = schema_versions(engine)
            if before is not None and before not in known_versions():
                raise SchemaTooNew(
                    f"the database is at schema {before}, this program supports up to {newest}: "
                    "it was written by a newer ddp-audit; update the program or use another data directory"
                )
            if before != newest:
                _upgrade(engine)
            return before, newest
    finally:
        engine.dispose()


def check_server(connection: Connection) -> None:
    """Raise DatabaseRefused for a server that is too old, or a database that cannot hold every text."""
    if connection.dialect.name != postgres.NAME:
        return
    encoding, version = connection.exec_driver_sql(
        "SELECT current_setting('server_encoding'), current_setting('server_version_num')::int / 10000"
    ).one()
    if version < OLDEST_SERVER:
        raise DatabaseRefused(f"the server is PostgreSQL {version}; {OLDEST_SERVER} or newer is needed")
    if encoding != "UTF8":
        name = connection.engine.url.database
        raise DatabaseRefused(
            f"database {name} has encoding {encoding}; create one with: createdb --encoding UTF8 --template template0"
        )


def upgrade(connection: Connection) -> None:
    """Bring a database to the newest schema in the caller's transaction."""
    if connection.dialect.name == postgres.NAME:
        postgres.lock(connection, postgres.Lock.MIGRATION, shared=False)
    command.upgrade(_config(connection), "head")


def _upgrade(engine: Engine) -> None:
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            # SQLite changes a column by copying the table and dropping the old one. With foreign keys on, the drop
            # deletes every row that refers to it. The setting works only outside a transaction, so not through
            # SQLAlchemy.
            driver: Any = connection.connection.driver_connection
            driver.execute("PRAGMA foreign_keys = OFF")
        # Our own transaction: Alembic would commit before the references are checked.
        with connection.begin():
            upgrade(connection)
            if engine.dialect.name == "sqlite":
                _check_references(connection)


def _check_references(connection: Connection) -> None:
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
    if broken is not None:
        raise RuntimeError(f"the migration left a row in {broken[0]} that refers to a missing {broken[2]}")
