"""Order of the tests (those with a browser come last), and the database they use.

`--database postgres` runs them on a PostgreSQL server: settings without an address get a database per data
directory. Tests of what is SQLite's alone are skipped then.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import Databases, Server, running_server

BROWSER = Path(__file__).parent / "browser"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--database", choices=["sqlite", "postgres"], default="sqlite", help="database of the tests")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Move the browser's tests to the end.

    Playwright keeps an event loop running in the main thread for as long as its browser lives, and a test that starts
    its own loop cannot run at the same time.
    """
    items.sort(key=lambda item: BROWSER in item.path.parents)
    if config.getoption("--database") == "postgres":
        for item in items:
            if item.get_closest_marker("sqlite"):
                item.add_marker(pytest.mark.skip(reason="about SQLite alone"))


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server with a migrated template."""
    with running_server() as running:
        running.prepare()
        yield running


@pytest.fixture(scope="session", autouse=True)
def databases(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make settings without an address use a server, with `--database postgres`."""
    if request.config.getoption("--database") != "postgres":
        yield
        return
    server: Server = request.getfixturevalue("server")
    with Databases(server).used():
        yield
