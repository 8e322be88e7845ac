"""A separate migrated database per test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.db import create_database_engine
from app.settings import Settings
from tests.support.postgres import Server


@pytest.fixture
def settings(server: Server, tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, database_url=server.url(server.fresh()))


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    made = create_database_engine(settings)
    yield made
    made.dispose()
