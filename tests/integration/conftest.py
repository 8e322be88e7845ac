"""A migrated data directory per test, and its database; a file with other needs defines its own fixture."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.db import create_database_engine
from app.schema import migrate
from app.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(data_dir=tmp_path)
    migrate(made)
    return made


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    made = create_database_engine(settings)
    yield made
    made.dispose()
