"""The process a supervisor starts: a fork of itself if it has the necessary imports, else a new program.

Standard library only, like the supervisor.
"""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from trainer.contract import forking
from trainer.contract.forking import Job

CARRIED: Final = "torch"
"""Already imported in a supervisor that was forked from the template, and in its forks."""


@dataclass(slots=True, kw_only=True)
class Main:
    """The process whose end ends the attempt; reaped by the supervisor like all others."""

    pid: int
    returncode: int | None = None
    """Exit code, negative for a signal; None while it is running."""

    def terminate(self) -> None:
        """Send SIGTERM; it is a child of this process and not reaped yet, so the pid is still valid."""
        os.kill(self.pid, signal.SIGTERM)


def start_main(argv: list[str], *, cwd: str, out: str | None, err: str | None) -> Main:
    """Start a command line with this process's environment; `out` and `err` are appended to. Raises OSError."""
    command = forking.module_command(argv) if CARRIED in sys.modules else None
    if command is None:
        return Main(pid=_execute(argv, cwd=cwd, out=out, err=err))
    module, arguments = command
    job = Job(module=module, arguments=arguments, environment=dict(os.environ), cwd=cwd, stdout=out, stderr=err)
    return Main(pid=forking.fork(job))


def _execute(argv: list[str], *, cwd: str, out: str | None, err: str | None) -> int:
    streams = [None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for path in (out, err)]
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**os.environ, **forking.room()},
            stdin=subprocess.DEVNULL,
            stdout=streams[0],
            stderr=streams[1],
        )
    finally:
        for stream in streams:
            if stream is not None:
                os.close(stream)
    process.returncode = 0  # the supervisor reaps it; the Popen object must not warn about it
    return process.pid
