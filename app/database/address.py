"""Addresses of databases: which are understood, and how they are shown without their password."""

from importlib import import_module
from typing import Final

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from app.database.postgres import DRIVER, INSTALL, NAME

FORMS: Final = f"write {DRIVER}://USER:PASSWORD@HOST:5432/NAME, or sqlite:////absolute/path/of/file.db"
DRIVERS: Final = {"sqlite": "sqlite", "sqlite+pysqlite": "sqlite", NAME: DRIVER, DRIVER: DRIVER}


def read_address(text: str) -> URL:
    """Return the address of a database.

    Raises ValueError, without the text, if it is not one, names no database, or if its driver is not installed.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # the latter for a port that is not a number
        raise ValueError(f"is not the address of a database; {FORMS}") from None
    if url.drivername not in DRIVERS:
        raise ValueError(f"{url.drivername[:40]!r} is not supported; {FORMS}")
    if not url.database or url.database == ":memory:":
        raise ValueError(f"names no database; {FORMS}")
    if url.get_backend_name() == NAME:
        _check_driver()
    return url.set(drivername=DRIVERS[url.drivername])


def _check_driver() -> None:
    try:
        import_module("psycopg")
    except ImportError as error:
        raise ValueError(f"PostgreSQL needs psycopg ({error}): {INSTALL}") from None


def shown(url: URL) -> str:
    """Return an address as a person may read it: the file of SQLite, or a server's address without the password."""
    if url.get_backend_name() != NAME:
        return str(url.database)
    return url.set(query={}).render_as_string(hide_password=True)
