"""A program of the user's under the supervisor: its own environment, its output shown and kept, its ranks found.

Standard library only, like the supervisor.
"""

import contextlib
import fcntl
import os
import select
import subprocess
import termios
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from app.host import processes
from trainer.contract.crumb import read_crumb
from trainer.contract.files import make_folder
from trainer.contract.paths import AttemptPaths
from worker.executors.local.main_process import Main
from worker.executors.local.ranks import Ranks
from worker.marker import MARKER

KEPT_BYTES: Final = 64 << 20
"""Of each stream of the program in the run's folder; all of it is shown."""
LAST_SECONDS: Final = 0.5
"""A stream that is silent for so long after the program's end is left to whoever still holds it."""
PIECE: Final = 1 << 16
STREAMS: Final = {1: "stdout", 2: "stderr"}


class Stream:
    """One output of the program: what it writes is shown here, and kept in a file."""

    def __init__(self, shown: int, path: Path) -> None:
        """Take the descriptor that shows it. A terminal here is a terminal for the program, too."""
        self._shown: int | None = shown
        self._terminal = os.isatty(shown)
        self._source, self.sink = os.openpty() if self._terminal else os.pipe2(os.O_CLOEXEC)
        if self._terminal:
            _as_it_is(self.sink)
            self.resize()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._left = KEPT_BYTES
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._copy, name=path.name, daemon=True)

    def begin(self) -> None:
        """Copy from now on; the program has its end of the stream."""
        os.close(self.sink)
        self._thread.start()

    def finish(self) -> None:
        """Copy what is left; the program has ended."""
        self._over.set()
        self._thread.join()

    def resize(self) -> None:
        """Give the program's terminal the size of this one."""
        if self._terminal and self._shown is not None:
            with contextlib.suppress(OSError):
                size = fcntl.ioctl(self._shown, termios.TIOCGWINSZ, bytes(8))
                fcntl.ioctl(self._source, termios.TIOCSWINSZ, size)

    def _copy(self) -> None:
        while True:
            ready = select.select([self._source], [], [], LAST_SECONDS)[0]
            if not ready and self._over.is_set():
                break
            try:
                data = os.read(self._source, PIECE) if ready else None
            except OSError:  # a terminal whose other end is closed
                break
            if data == b"":
                break
            if data:
                self._take(data)
        os.close(self._source)
        os.close(self._file)

    def _take(self, data: bytes) -> None:
        if self._shown is not None and not _write(self._shown, data):
            self._shown = None  # nobody reads the output any more; the program continues
        kept = data[: self._left]
        self._left -= len(kept)
        if kept and not _write(self._file, kept):
            self._left = 0  # no space for more


def _write(descriptor: int, data: bytes) -> bool:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return False
    return True


def _as_it_is(descriptor: int) -> None:
    """Let the terminal here, and no other before it, translate line ends."""
    attributes = termios.tcgetattr(descriptor)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(descriptor, termios.TCSANOW, attributes)


class Program:
    """The program, started."""

    def __init__(self, plan: Mapping[str, Any], paths: AttemptPaths) -> None:
        """Start it. Raises OSError."""
        make_folder(paths.log(0, "stdout").parent, within=paths.run)
        in_terminal = bool(plan["terminal"])
        self._streams = [Stream(number, paths.log(0, name)) for number, name in STREAMS.items()] if in_terminal else []
        files = [] if in_terminal else [paths.log(0, name).open("ab") for name in STREAMS.values()]
        outputs = [stream.sink for stream in self._streams] or files
        try:
            process = subprocess.Popen(
                [str(word) for word in plan["argv"]],
                cwd=str(plan["cwd"]),
                env=_environment(plan),
                stdin=None if in_terminal else subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
            )
        finally:
            for file in files:
                file.close()
        for stream in self._streams:
            stream.begin()
        process.returncode = 0  # the supervisor reaps it; the object must not complain when it goes
        self.main = Main(pid=process.pid)

    def resize(self) -> None:
        """The terminal has another size."""
        for stream in self._streams:
            stream.resize()

    def finish(self) -> None:
        """Show and keep the last of its output."""
        for stream in self._streams:
            stream.finish()


def _environment(plan: Mapping[str, Any]) -> dict[str, str]:
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)  # this process's own
    if plan["python_path"]:
        environment["PYTHONPATH"] = str(plan["python_path"])
    return environment


class FoundRanks(Ranks):
    """Ranks of a program whose number of ranks is unknown: each is found by its breadcrumb."""

    def __init__(self, paths: AttemptPaths, marker: str) -> None:
        super().__init__(paths, expected=0)
        self._marker = marker

    @property
    def complete(self) -> bool:
        """Never: another one may come."""
        return False

    def look(self, launcher: int) -> None:  # noqa: ARG002  # a launcher of the user's may start ranks in any way
        """Find ranks that have left a breadcrumb since the last look, or that another process has taken over."""
        for rank, path in self._paths.breadcrumbs().items():
            crumb, known = read_crumb(path), self._ranks.get(rank)
            if crumb is None or (known is not None and known.process.pid == crumb.pid):
                continue
            # A pid from a file names nothing for certain.
            if processes.environment_of(crumb.pid).get(MARKER) == self._marker:
                self.add(crumb.pid, rank=rank, local_rank=rank)
