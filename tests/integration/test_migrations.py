"""Every earlier schema, with data in every table, migrates to the newest without loss; a newer one is refused."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlmodel import SQLModel

import app.runs.derived
import app.runs.models
import app.sessions
import migrations
from app.db import create_database_engine
from app.schema import SchemaTooNew, known_versions, migrate, schema_versions
from app.settings import Settings

pytestmark = pytest.mark.sqlite

assert app.runs.models
assert app.runs.derived
assert app.sessions

DATA = Path(__file__).resolve().parents[1] / "support" / "schemas"
VERSIONS = sorted(known_versions())

Rows = dict[str, list[dict[str, Any]]]


def config(connection: sa.Connection) -> Config:
    made = Config()
    made.set_main_option("script_location", str(Path(migrations.__file__).parent))
    made.attributes["connection"] = connection
    return made


def old_database(settings: Settings, version: str) -> None:
    """Create a database of `version` with the data of every version up to it."""
    engine = create_database_engine(settings)
    for step in VERSIONS[: VERSIONS.index(version) + 1]:
        with engine.connect() as connection:
            command.upgrade(config(connection), step)
            connection.commit()
        with sqlite3.connect(database(settings)) as raw:
            raw.execute("PRAGMA foreign_keys = ON")
            raw.executescript((DATA / f"{step}.sql").read_text())
        raw.close()
    engine.dispose()


def database(settings: Settings) -> Path:
    return settings.data_dir / "ddp-audit.db"


def rows_of(settings: Settings) -> Rows:
    connection = sqlite3.connect(database(settings))
    connection.row_factory = sqlite3.Row
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {
        name: sorted((dict(row) for row in connection.execute(f'SELECT * FROM "{name}"')), key=repr)
        for name in names
        if name != "alembic_version" and not name.startswith("sqlite_")
    }
    connection.close()
    return found


MOVED = {"stage_attempt": {"shim_pid", "shim_start", "boot_id"}}
"""Columns whose values are elsewhere in newer schemas; a separate test says where."""


def lost(before: Rows, after: Rows) -> list[str]:
    """Return what is in `before` but not in `after`; additional tables and columns are not a loss."""
    missing = []
    for table, rows in before.items():
        kept = after.get(table, [])
        for row in rows:
            wanted = {name: value for name, value in row.items() if name not in MOVED.get(table, set())}
            if not any(wanted.items() <= other.items() for other in kept):
                missing.append(f"{table}: {row}")
    return missing


@pytest.mark.parametrize("version", VERSIONS)
def test_old_data_survives_upgrade(tmp_path: Path, version: str) -> None:
    settings = Settings(data_dir=tmp_path)
    old_database(settings, version)
    before = rows_of(settings)
    assert all(before.values()), "every table of an old schema must be tried with rows in it"
    assert migrate(settings) == (version, VERSIONS[-1])
    assert lost(before, rows_of(settings)) == []
    connection = sqlite3.connect(database(settings))
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def test_old_runs_learn_how_long_they_took(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    old_database(settings, "0003")
    with sqlite3.connect(database(settings)) as connection:
        connection.execute("UPDATE run SET started_at = '2026-01-02 03:04:05.999999' WHERE id = 1")
    connection.close()
    migrate(settings)
    took = {row["id"]: row["took_seconds"] for row in rows_of(settings)["run"]}
    assert took == {1: 60.000001, 2: 60.0, 9: None}  # to the microsecond; the third never started


def test_old_checks_are_read_as_at_most(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    old_database(settings, "0004")
    migrate(settings)
    read = {row["name"]: (row["relation"], row["strict"]) for row in rows_of(settings)["run_check"]}
    assert read == {"gradient_parity": ("at_most", 0), "sync_count": ("at_most", 0)}


def test_old_supervisors_are_found_again(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    old_database(settings, "0004")
    with sqlite3.connect(database(settings)) as connection:
        connection.execute(
            "UPDATE stage_attempt SET shim_pid = 77, shim_start = 1234.0, boot_id = 'b' WHERE run_id = 1"
        )
    connection.close()
    migrate(settings)
    references = {row["run_id"]: row["reference"] for row in rows_of(settings)["stage_attempt"]}
    assert json.loads(references[1]) == {"pid": 77, "start": 1234, "boot": "b"}


def test_upgraded_schema_is_the_models(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    old_database(settings, VERSIONS[0])
    migrate(settings)
    engine = create_database_engine(settings)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, SQLModel.metadata) == []
        with connection.begin_nested():
            connection.execute(sa.text("DROP INDEX ix_run_kind_id"))
            assert compare_metadata(context, SQLModel.metadata) != []
    engine.dispose()


def test_upgraded_run_numbers_go_on(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    old_database(settings, "0001")
    migrate(settings)
    with sqlite3.connect(database(settings)) as connection:
        connection.execute("DELETE FROM run WHERE id = 9")
        connection.execute(
            "INSERT INTO run (name, pinned, kind, params, launch, state, created_at, gpus, waiting_for, next_event_id,"
            " created_by, deleting) VALUES ('', 0, 'cifar', '{}', '{}', 'queued', '2026-01-01', '[]', '', 1, '', 0)"
        )
        assert connection.execute("SELECT max(id) FROM run").fetchone() == (10,)  # 9 was assigned once
    connection.close()


def test_newer_database_is_refused(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    migrate(settings)
    with sqlite3.connect(database(settings)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    before = rows_of(settings)
    with pytest.raises(SchemaTooNew, match="at schema 9999, this program supports up to"):
        migrate(settings)
    assert rows_of(settings) == before


def test_second_migration_changes_nothing(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert migrate(settings) == (None, VERSIONS[-1])
    assert migrate(settings) == (VERSIONS[-1], VERSIONS[-1])


def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Add a migration after the newest to a copy of the real ones."""
    folder = tmp_path / "scripts"
    (folder / "versions").mkdir(parents=True)
    source = Path(migrations.__file__).parent
    for path in [source / "env.py", *(source / "versions").glob("0*.py")]:
        (folder / path.relative_to(source)).write_text(path.read_text())
    (folder / "versions" / "9000_planted.py").write_text(
        f"import sqlalchemy as sa\nfrom alembic import op\nrevision = '9000'\ndown_revision = '{VERSIONS[-1]}'\n"
        f"branch_labels = depends_on = None\n\n\ndef upgrade():\n    {body}\n"
    )
    monkeypatch.setattr(migrations, "__file__", str(folder / "__init__.py"))
    assert ScriptDirectory(str(folder)).get_current_head() == "9000"


def test_harness_catches_lost_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    old_database(settings, VERSIONS[-1])
    before = rows_of(settings)
    planted(tmp_path, monkeypatch, "op.execute('DELETE FROM run_event WHERE id = 2')")
    migrate(settings)
    assert [line.split(":")[0] for line in lost(before, rows_of(settings))] == ["run_event"]


def test_rebuilt_table_keeps_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # SQLite changes a column by copying the table and dropping the old one; with foreign keys on, the drop would delete
    # every tag, event and history row of every run.
    settings = Settings(data_dir=tmp_path / "data")
    old_database(settings, VERSIONS[-1])
    before = rows_of(settings)
    planted(
        tmp_path,
        monkeypatch,
        "with op.batch_alter_table('run', recreate='always') as batch:\n"
        "        batch.add_column(sa.Column('colour', sa.String()))",
    )
    migrate(settings)
    after = rows_of(settings)
    assert lost(before, after) == []
    assert "colour" in after["run"][0]


def test_failing_migration_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    old_database(settings, VERSIONS[-1])
    before = rows_of(settings)
    planted(tmp_path, monkeypatch, "op.execute('DELETE FROM run_tag')\n    raise ZeroDivisionError")
    with pytest.raises(ZeroDivisionError):
        migrate(settings)
    assert rows_of(settings) == before
    engine = create_database_engine(settings)
    assert schema_versions(engine)[0] == VERSIONS[-1]
    engine.dispose()


def test_migration_that_breaks_references_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    old_database(settings, VERSIONS[-1])
    before = rows_of(settings)
    planted(tmp_path, monkeypatch, "op.execute('DELETE FROM run WHERE id = 1')")
    with pytest.raises(RuntimeError, match="refers to a missing run"):
        migrate(settings)
    assert rows_of(settings) == before
