"""Commands as forks of one process, which saves the second for imports; a test sets their standard streams.

`python -m tests.support.forked` reads one JSON request per line, `{arguments, environment, cwd, out, stdout, stderr}`,
and answers each with `{code}`. `out` selects the kind of standard output; `stdout` and `stderr` are files.
"""

import contextlib
import importlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Self
from unittest.mock import patch

from tests.support.cli import Done, environment

Out = Literal["wide", "ascii", "full", "closed", "gone"]
"""A file in UTF-8, a file in ASCII, a full device, no descriptor, a pipe without a reader."""
SECONDS: Final = 120.0
CARRIED: Final = (
    "app.assembly",
    "app.cli.main",
    "app.figures.write",
    "app.storage.backup",
    "rich.table",
    "worker.loop",
)


class Forks:
    """The process to fork from; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        with self._process:  # closes its pipes, which ends it
            pass

    def call(self, arguments: Sequence[str], out: Out, *, data_dir: Path, cwd: Path, **given: str) -> Done:
        """Run a command with such a standard output and return its outcome."""
        stdout, stderr = self._folder / "stdout", self._folder / "stderr"
        request = {
            "arguments": list(arguments),
            "environment": environment(data_dir, given),
            "cwd": str(cwd),
            "out": out,
            "stdout": str(stdout),
            "stderr": str(stderr),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        code = json.loads(self._process.stdout.readline())["code"]
        text = stdout.read_bytes().decode("ascii" if out == "ascii" else "utf-8", "surrogateescape")
        return Done(returncode=code, stdout=text, stderr=stderr.read_text(errors="replace"))


def serve() -> None:
    """Answer requests until there are no more."""
    for name in CARRIED:
        importlib.import_module(name)
    _build_once()
    answers = os.fdopen(os.dup(1), "w")
    os.set_inheritable(answers.fileno(), False)
    for line in sys.stdin:
        request = json.loads(line)
        _build(request)
        pid = os.fork()
        if pid == 0:
            answers.close()
            _become(request)
        answers.write(json.dumps({"code": _code_of(pid)}) + "\n")
        answers.flush()


BUILT: Final[dict[str, Any]] = {}
"""The API of each data directory, built before the fork: half a second that every command would take."""


def _build_once() -> None:
    from app import assembly

    create = assembly.create_local_api

    def built(settings: Any) -> Any:
        place = str(settings)
        if place not in BUILT:
            BUILT[place] = create(settings)
        return BUILT[place]

    assembly.create_local_api = built


def _build(request: Mapping[str, Any]) -> None:
    """Build what a command on a data directory needs, once, and request a page so that its routes are ready."""
    from app.cli.main import main

    given = request["environment"]
    place = given["DDP_AUDIT_DATA_DIR"]
    if "DDP_AUDIT_PORT" in given or place in BUILT or not (Path(place) / "ddp-audit.db").exists():
        return
    BUILT[place] = None
    spare = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with patch.dict(os.environ, given, clear=True), redirect_stdout(spare), contextlib.suppress(SystemExit):
        main(["list"])  # closes its database, so that no connection is forked


def _code_of(pid: int) -> int:
    with io.FileIO(os.pidfd_open(pid)) as process:
        if not select.select([process], [], [], SECONDS)[0]:
            os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(request: Mapping[str, Any]) -> NoReturn:
    """Run the command, with streams set up as an interpreter does at its start."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(_opened(request["out"], request["stdout"]), 1)
    os.closerange(3, 256)
    if request["out"] == "closed":
        os.close(1)
    encoding = "ascii" if request["out"] == "ascii" else "utf-8"
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    made: Any = None if request["out"] == "closed" else _writer(1, encoding, "strict")
    sys.stdout, sys.stderr = made, _writer(2, "utf-8", "backslashreplace")
    sys.argv = ["ddp-audit", *request["arguments"]]
    code = 1
    try:
        from app.cli.main import main

        main()
    except SystemExit as left:
        code = int(str(left.code or 0))
        sys.stdout.flush()  # as an interpreter does at its end; a full shutdown would cost a second
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)


def _writer(number: int, encoding: str, errors: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), encoding, errors)


def _opened(out: Out, path: str) -> int:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    if out == "full":
        return os.open("/dev/full", os.O_WRONLY)
    if out == "gone":
        reader, writer = os.pipe()
        os.close(reader)
        return writer
    return file


if __name__ == "__main__":
    serve()
