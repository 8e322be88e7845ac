"""A real PostgreSQL server, started from the system's binaries, with a migrated template for databases of tests."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL, make_url

from app.schema import migrate
from app.settings import Settings

USER, PASSWORD = "ddp", "s3cret/with:odd@signs"
TEMPLATE = "migrated"
SETTINGS = {
    "fsync": "off",  # these databases need not survive a power cut
    "full_page_writes": "off",
    "max_connections": "200",
    "timezone": "Asia/Kathmandu",  # a server in another zone, off by a quarter of an hour
}


def binaries() -> Path | None:
    """Return the folder of the newest server on this machine, None if there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("postgres")
    return Path(on_path).resolve().parent if on_path else None


def _as_owner() -> list[str]:
    # The server refuses to run as root, and does not outlive a test run that was killed.
    owner = ["--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    return ["setpriv", "--pdeathsig=INT", *owner]


class Server:
    """One server on a free port of this machine; `stop` and `start` again as a failing one would."""

    def __init__(self, folder: Path, programs: Path, *, durable: bool = False) -> None:
        self.folder, self._programs = folder, programs
        self._settings = {**SETTINGS, **({"fsync": "on", "full_page_writes": "on"} if durable else {})}
        self._data = folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._names = count(1)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        password = folder / "password"
        password.write_text(PASSWORD)
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            for path in (folder, password):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        options = ["--no-sync", "--auth=scram-sha-256", f"--pwfile={password}", f"--username={USER}"]
        self._run("initdb", *options, "--encoding=UTF8", "--locale=C.UTF-8", f"--pgdata={self._data}")

    def _run(self, program: str, *arguments: str) -> None:
        argv = [*_as_owner(), str(self._programs / program), *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/")
        assert done.returncode == 0, f"{program} failed: {done.stderr}"

    def start(self) -> None:
        """Start and wait until it accepts connections."""
        chosen = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        argv = [str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self.port), "-k", str(self.folder)]
        log = self.folder / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*_as_owner(), *argv, *chosen], stdout=output, stderr=output, cwd="/", start_new_session=True
            )
        until = time.monotonic() + 60
        while True:
            try:
                self.connect("postgres").close()
            except psycopg.OperationalError:
                alive = self._process.poll() is None and time.monotonic() < until
                assert alive, f"the server did not start:\n{log.read_text()[-2000:]}"
                time.sleep(0.02)
            else:
                return

    def stop(self, *, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT disconnects everybody, SIGQUIT is a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def connect(self, name: str) -> "psycopg.Connection[tuple[object, ...]]":
        """Return a connection that commits each statement."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname=name, autocommit=True
        )

    def execute(self, statement: str, *, name: str = "postgres") -> None:
        with self.connect(name) as connection:
            connection.execute(statement.encode())

    def url(self, name: str, *, user: str = USER, password: str = PASSWORD) -> str:
        """Return the value of DDP_AUDIT_DATABASE_URL for a database."""
        quoted = password.replace("/", "%2F").replace(":", "%3A").replace("@", "%40")
        return f"postgresql+psycopg://{user}:{quoted}@127.0.0.1:{self.port}/{name}"

    def prepare(self) -> None:
        """Create the template: a database at the newest schema."""
        self.execute(f"CREATE DATABASE {TEMPLATE}")
        migrate(Settings(data_dir=self.folder / "template", database_url=self.url(TEMPLATE)))

    def fresh(self, *, empty: bool = False) -> str:
        """Return the name of a new database, migrated unless `empty`."""
        name = f"t{next(self._names)}"
        template = "template0 ENCODING 'UTF8'" if empty else f"{TEMPLATE} STRATEGY FILE_COPY"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name


@contextmanager
def running_server(*, durable: bool = False) -> Iterator[Server]:
    """Start a server in a temporary folder, and remove both afterwards."""
    programs = binaries()
    assert programs is not None, "no PostgreSQL on this machine: apt-get install postgresql"
    folder = Path(tempfile.mkdtemp(prefix="ddp-audit-postgres-", dir="/tmp"))
    server = Server(folder, programs, durable=durable)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


class Databases:
    """A database per data directory, made when it is first used."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._names: dict[Path, str] = {}
        self._lock = threading.Lock()

    def url_of(self, data_dir: Path) -> str:
        with self._lock:
            if data_dir not in self._names:
                self._names[data_dir] = self.server.fresh()
            return self.server.url(self._names[data_dir])

    @contextmanager
    def used(self) -> Iterator[None]:
        """Give settings without an address that of such a database, in this process."""

        def database(settings: Settings) -> URL:
            return make_url(settings.database_url or self.url_of(settings.data_dir))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Settings, "database", property(database))
            yield
