"""`copy-database`: SQLite to PostgreSQL and back loses nothing; a refused or broken copy leaves nothing behind."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, insert, inspect, text
from sqlmodel import SQLModel, select
from typer.testing import CliRunner

from app.cli.exits import CommandError
from app.cli.main import app as command_line
from app.db import create_database_engine, insert_rows, read_session, write_session
from app.runs import queue
from app.runs.errors import Conflict, NotFound, Refused
from app.runs.models import MalformedLine, Meta, Run, RunHistory, WorkerRow
from app.schema import migrate
from app.settings import Settings
from app.storage import copying
from app.storage.copying import address, copy_database
from tests.support.pages_data import fill
from tests.support.postgres import Server

ODD = "last words: \0 \x1a \x1a0 \x1a1 ü 💼 \x7f"


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A SQLite file with rows in most tables, text with U+0000, and a run number that was used and deleted."""
    settings = Settings(data_dir=tmp_path / "data")
    path = settings.data_dir / "ddp-audit.db"
    settings = Settings(data_dir=settings.data_dir, database_url=f"sqlite:///{path}")
    engine = create_database_engine(settings)
    ids = fill(settings, engine)
    with write_session(engine) as session:
        session.add(MalformedLine(run_id=ids["failed"], stage="s", attempt=1, rank=0, offset=2**40, text=ODD, why="w"))
        last = queue.insert_run(session, kind="k", params={"text": ODD, "big": 2**60, "tiny": 5e-324})
        session.flush()
        session.delete(session.get(Run, last.id))
    engine.dispose()
    return path


def dump(url: str, tmp_path: Path) -> dict[str, list[str]]:
    engine = create_database_engine(Settings(data_dir=tmp_path / "dump", database_url=url))
    with read_session(engine) as session:
        tables = SQLModel.metadata.sorted_tables
        found = {table.name: sorted(repr(tuple(row)) for row in session.execute(table.select())) for table in tables}
    engine.dispose()
    return found


def test_there_and_back_is_the_same(server: Server, filled: Path, tmp_path: Path) -> None:
    before = dump(f"sqlite:///{filled}", tmp_path)
    assert sum(map(len, before.values())) > 100
    url, back = server.url(server.fresh(empty=True)), tmp_path / "back" / "new.db"
    there = copy_database(address(str(filled), "SOURCE"), address(url, "TARGET"))
    assert dump(url, tmp_path) == before
    assert {name: item.rows for name, item in there.items()} == {name: len(rows) for name, rows in before.items()}
    again = copy_database(address(url, "SOURCE"), address(str(back), "TARGET"))
    assert dump(f"sqlite:///{back}", tmp_path) == before
    assert again == there


def test_numbers_go_on_after_copying(server: Server, filled: Path, tmp_path: Path) -> None:
    url = server.url(server.fresh())
    copy_database(address(str(filled), "SOURCE"), address(url, "TARGET"))
    engine = create_database_engine(Settings(data_dir=tmp_path, database_url=url))
    with write_session(engine) as session:
        highest = session.execute(text("SELECT max(id) FROM run")).scalar_one()
        new = queue.number_of(queue.insert_run(session, kind="k", params={}))
    engine.dispose()
    assert new == highest + 2  # the number in between belonged to a deleted run


def empty(url: str, tmp_path: Path) -> bool:
    """Whether a database holds no table at all."""
    engine = create_database_engine(Settings(data_dir=tmp_path, database_url=url))
    tables = inspect(engine).get_table_names()
    engine.dispose()
    return tables == []


def test_broken_copy_leaves_nothing(
    server: Server, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lossy(connection: Any, table: Any, columns: Any, rows: Any) -> None:
        insert_rows(connection, table, columns, rows[:-1] if table.name == "run_history" else rows)

    monkeypatch.setattr(copying, "insert_rows", lossy)
    url, file = server.url(server.fresh(empty=True)), tmp_path / "half.db"
    for target in (url, str(file)):
        with pytest.raises(Conflict, match="table run_history differs after copying"):
            copy_database(address(str(filled), "SOURCE"), address(target, "TARGET"))
    assert empty(url, tmp_path)
    assert not file.exists()
    monkeypatch.undo()
    assert copy_database(address(str(filled), "SOURCE"), address(url, "TARGET"))["run_history"].rows > 5


def test_changed_value_is_noticed(
    server: Server, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(connection: Any, table: Any, columns: Any, rows: Any) -> None:
        place = columns.index("text") if table.name == "malformed_line" else None
        changed = [row if place is None else (*row[:place], row[place] + " ", *row[place + 1 :]) for row in rows]
        insert_rows(connection, table, columns, changed)

    monkeypatch.setattr(copying, "insert_rows", careless)
    url = server.url(server.fresh(empty=True))
    with pytest.raises(Conflict, match="table malformed_line differs"):
        copy_database(address(str(filled), "SOURCE"), address(url, "TARGET"))
    assert empty(url, tmp_path)


def test_targets_that_are_refused(server: Server, filled: Path, engine: Engine, settings: Settings) -> None:
    source = address(str(filled), "SOURCE")
    with write_session(engine) as session:
        session.add(Meta(key="database_id", value="x"))
    with pytest.raises(Conflict, match="is not empty: there are rows in meta"):
        copy_database(source, settings.database)
    with pytest.raises(Conflict, match="the same database"):
        copy_database(source, address(f"{filled.parent}/../data/ddp-audit.db", "TARGET"))
    with pytest.raises(Conflict, match="the same database"):
        copy_database(settings.database, settings.database.set(host="localhost"))
    with pytest.raises(NotFound, match="there is no database"):
        copy_database(address(str(filled) + ".not", "SOURCE"), settings.database)
    other = server.fresh()
    server.execute("UPDATE alembic_version SET version_num = '0007'", name=other)
    with pytest.raises(Conflict, match="schema 0007"):
        copy_database(source, address(server.url(other), "TARGET"))
    with pytest.raises(Conflict, match=r"at schema 0007, .* run `ddp-audit migrate` on it first"):
        copy_database(address(server.url(other), "SOURCE"), address(server.url(server.fresh()), "TARGET"))
    with pytest.raises(Conflict, match="does not exist"):
        copy_database(source, address(server.url("nowhere"), "TARGET"))
    with pytest.raises(Refused, match="TARGET: 'mysql' is not supported; write postgresql"):
        address("mysql://u:p@h/d", "TARGET")


def test_source_in_use_is_refused(server: Server, filled: Path, tmp_path: Path) -> None:
    made = create_database_engine(Settings(data_dir=tmp_path, database_url=f"sqlite:///{filled}"))
    from app.clock import now

    at: dict[str, Any] = {"started_at": now(), "heartbeat_at": now()}
    with write_session(made) as session:
        row = WorkerRow(id="live", pid=7, pid_start=1, boot_id="b", host="h", **at)
        session.execute(insert(WorkerRow).values(row.model_dump()))
    made.dispose()
    with pytest.raises(Conflict, match="process 7 on h"):
        copy_database(address(str(filled), "SOURCE"), address(server.url(server.fresh()), "TARGET"))


def test_command_copies_and_reports(server: Server, filled: Path, tmp_path: Path) -> None:
    url = server.url(server.fresh(empty=True))
    done = CliRunner().invoke(command_line, ["copy-database", str(filled), url, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["run"]["rows"] == len(dump(url, tmp_path)["run"])
    with pytest.raises(CommandError, match="is not empty") as caught:
        CliRunner().invoke(command_line, ["copy-database", str(filled), url], catch_exceptions=False)
    assert caught.value.code == 2


def test_migrated_copy_is_a_record(server: Server, filled: Path, tmp_path: Path) -> None:
    url = server.url(server.fresh(empty=True))
    copy_database(address(str(filled), "SOURCE"), address(url, "TARGET"))
    settings = Settings(data_dir=tmp_path / "service", database_url=url)
    assert len(set(migrate(settings))) == 1
    engine = create_database_engine(settings)
    with read_session(engine) as session:
        assert session.exec(select(RunHistory)).first() is not None
    engine.dispose()
