"""Every command of the command line on a PostgreSQL server, with the server away, and with one that goes away."""

import socket
import subprocess
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
import typer
from PIL import Image
from sqlalchemy.exc import DBAPIError

from app import schema
from app.cli.main import app
from app.db import create_database_engine, insert_rows, table_of, why_unavailable, write_session
from app.runs.models import RunEvent
from app.schema import migrate
from app.settings import Settings
from tests.support.cli import Done, call, environment
from tests.support.pages_data import add_run
from tests.support.postgres import Server
from tests.support.worker_lab import ROOT
from worker.rows import EVENT

NUMBERS = count(1)
HOOK: Final = {"DDP_AUDIT_WEBHOOK_URL": "http://127.0.0.1:9/hook", "DDP_AUDIT_WEBHOOK_SECRET": "of the tests"}
RUN: Final = ("run", "token-parity", "-p", "device=cpu", "-p", "world_size=2", "--name", "ended")
COMMANDS: Final[dict[str, tuple[str, int, str]]] = {
    "serve": ("--port 0", 0, ""),
    "worker": ("--once", 0, ""),
    "migrate": ("", 0, "newest schema"),
    "run": ("token-parity --detach", 0, "queued"),
    "trace": ("--json -- {python} -c pass", 1, '"kind":"trace"'),
    "retry": ("{ended}", 0, "a retry of run {ended}"),
    "cancel": ("{queued}", 0, "cancelled"),
    "kinds": ("", 0, "token-parity"),
    "targets": ("", 0, "built-in"),
    "predict": ("{picture}", 6, ""),
    "list": ("-q ended", 0, "succeeded"),
    "show": ("{ended}", 0, "token-parity"),
    "result": ("{ended}", 0, "gradient_parity"),
    "logs": ("{ended} --rank 0", 0, ""),
    "metrics": ("{ended} --json", 0, '"series"'),
    "resources": ("{ended} --json", 0, '"series"'),
    "events": ("{ended} --type start", 0, "start {{"),
    "artifacts": ("{ended} --json", 0, '"items"'),
    "compare": ("{ended} {deletable}", 0, "gradient_parity"),
    "trends": ("token-parity gradient_parity --json", 0, '"run_id":{ended}'),
    "edit": ("{ended} --add-tag kept", 0, "kept"),
    "delete": ("{deletable} --yes", 0, "{deletable}"),
    "export": ("{ended} --json", 0, '"events"'),
    "junit": ("{ended}", 0, "<testsuite"),
    "page": ("{ended} -o {folder}/page.html", 0, "bytes"),
    "badge": ("token-parity", 0, "<svg"),
    "figures": ("{ended} --json", 0, ".svg"),
    "check-environment": ("--json", 0, '"gloo"'),
    "check-checkpoints": ("{ended}", 0, ""),
    "verify": ("{ended}", 0, ""),
    "usage": ("", 0, "1 run"),
    "retention": ("--max-age-days 1", 0, "would be removed"),
    "orphans": ("", 0, "0 items"),
    "clean": ("", 0, "{ended}"),
    "backup": ("{folder}/backup.tar", 2, ""),
    "restore": ("{picture}", 2, ""),
    "copy-database": ("{sqlite} {empty}", 0, "digests agree"),
    "acquire": ("token-parity", 0, ""),
    "status": ("--json", 1, '"no_worker"'),
    "audit": ("--run {ended}", 0, "submit"),
    "deliveries": ("--run {ended}", 0, "pending"),
    "redeliver": ("{delivery}", 0, "{delivery}"),
}
"""Command: its arguments, its exit code, and a part of its output; names in braces are those of `Place.names`."""
WITHOUT: Final = {"kinds", "targets", "serve", "migrate", "status"}
"""Commands that need the database for its schema alone, or report that it is away as a shortfall."""
UNCONNECTED: Final = {"check-environment", "acquire", "backup", "restore"}
"""Commands that need no database, or refuse any server before they connect to it."""


@dataclass(frozen=True)
class Place:
    """A copy of the database with an ended run, and the folder of that run."""

    server: Server
    url: str
    data_dir: Path
    folder: Path
    ended: int

    def call(self, *arguments: str, **given: str) -> Done:
        """Run a command on it."""
        return call(*arguments, data_dir=self.data_dir, DDP_AUDIT_DATABASE_URL=self.url, **given)

    def names(self, wanted: str) -> dict[str, Any]:
        """Return the names that `wanted` uses, making what they name."""
        made: dict[str, Any] = {
            "ended": self.ended,
            "delivery": 1,  # of the one run that has ended
            "folder": self.folder,
            "python": sys.executable,
            "sqlite": self.folder / "old.db",
            "picture": self.folder / "picture.png",
        }
        engine = create_database_engine(Settings(data_dir=self.data_dir, database_url=self.url))
        if "{queued}" in wanted:
            made["queued"] = add_run(engine, "queued")
        if "{deletable}" in wanted:
            made["deletable"] = add_run(engine, "failed", reason="rank_exit")
        if "{empty}" in wanted:
            made["empty"] = self.server.url(self.server.fresh(empty=True))
            migrate(Settings(data_dir=self.folder, database_url=f"sqlite:///{made['sqlite']}"))
        Image.new("RGB", (8, 8)).save(made["picture"])
        engine.dispose()
        return made


@pytest.fixture(scope="module")
def original(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, int]:
    """Return a database and a folder with a run that the command `run` executed, and its number."""
    name, data_dir = server.fresh(), tmp_path_factory.mktemp("data")
    done = call(*RUN, "--json", data_dir=data_dir, DDP_AUDIT_DATABASE_URL=server.url(name), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert done.document["verdict"] == "pass"
    return name, data_dir, int(done.document["id"])


@pytest.fixture
def place(server: Server, original: tuple[str, Path, int], tmp_path: Path) -> Place:
    source, data_dir, ended = original
    name = f"{source}_{next(NUMBERS)}"
    server.execute(f"CREATE DATABASE {name} TEMPLATE {source} STRATEGY FILE_COPY")
    return Place(server, server.url(name), data_dir, tmp_path, ended)


def words(arguments: str, names: dict[str, Any]) -> list[str]:
    return [part.format_map(names) for part in arguments.split()]


def test_every_command_is_listed() -> None:
    known: Any = typer.main.get_command(app)
    assert set(known.commands) == set(COMMANDS)


@pytest.mark.torchrun
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "serve"])
def test_command_works_on_a_server(place: Place, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, code, part = COMMANDS[name]
    names = place.names(arguments)
    monkeypatch.chdir(place.folder)
    done = place.call(name, *words(arguments, names), **HOOK)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert part.replace("{ended}", str(place.ended)).format_map(names) in done.stdout, done.stdout
    assert "Traceback" not in done.stderr
    assert not (place.data_dir / "ddp-audit.db").exists()


def unreachable() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"postgresql+psycopg://somebody:hidden@127.0.0.1:{probe.getsockname()[1]}/record"


def lines(done: Done) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.strip()]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in UNCONNECTED])
def test_server_that_is_away_is_one_line(tmp_path: Path, name: str) -> None:
    given: dict[str, Any] = {"ended": 1, "queued": 2, "deletable": 3, "delivery": 4}
    given |= {"python": sys.executable, "folder": tmp_path, "picture": tmp_path / "picture.png"}
    given |= {"sqlite": tmp_path / "old.db", "empty": unreachable()}
    Image.new("RGB", (8, 8)).save(given["picture"])
    migrate(Settings(data_dir=tmp_path, database_url=f"sqlite:///{given['sqlite']}"))
    done = call(name, *words(COMMANDS[name][0], given), data_dir=tmp_path, DDP_AUDIT_DATABASE_URL=unreachable())
    assert len(lines(done)) == 1, done.stderr
    assert "cannot be used" in done.stderr
    assert "hidden" not in done.stdout + done.stderr
    if name == "copy-database":  # its arguments name the databases
        assert done.returncode == 2
    else:
        assert done.returncode == 3
        assert "DDP_AUDIT_DATABASE_URL" in done.stderr


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in UNCONNECTED | WITHOUT])
def test_server_that_goes_away_is_one_line(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers when the schema is looked at, and never again."""
    monkeypatch.setattr(schema, "migrate", lambda _settings: ("0001", "0001"))
    test_server_that_is_away_is_one_line(tmp_path, name)


@pytest.mark.parametrize("options", [(), ("--once",)], ids=["forever", "once"])
def test_plain_worker_says_why_it_cannot_start(server: Server, tmp_path: Path, options: tuple[str, ...]) -> None:
    urls = {unreachable(): "Connection refused", server.url(server.fresh(empty=True)): "run: ddp-audit migrate"}
    for url, said in urls.items():
        variables = environment(tmp_path, {"DDP_AUDIT_DATABASE_URL": url})
        argv = [sys.executable, "-m", "worker", *options]
        done = subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 3
        assert said in done.stderr
        assert "(DDP_AUDIT_DATABASE_URL) cannot be used" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not any(secret in done.stderr for secret in ("hidden", "s3cret"))


def test_connection_lost_in_a_bulk_write_counts_as_away(server: Server, place: Place) -> None:
    engine = create_database_engine(Settings(data_dir=place.data_dir, database_url=place.url))
    event = (place.ended, 10_000, "s", 1, 0, "message", "{}")

    def write(row: tuple[Any, ...], *, cut: bool) -> None:
        with write_session(engine) as session:
            number = session.connection().exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            if cut:
                server.execute(f"SELECT pg_terminate_backend({number}, 10000)")
            insert_rows(session.connection(), table_of(RunEvent), EVENT, [row])

    with pytest.raises(DBAPIError) as caught:
        write(event, cut=True)
    assert why_unavailable(caught.value)
    with pytest.raises(DBAPIError) as caught:
        write((None, *event[1:]), cut=False)
    assert not why_unavailable(caught.value)  # a fault of the program is not waited out
    engine.dispose()
