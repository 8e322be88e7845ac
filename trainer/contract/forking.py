"""Starts `python -m MODULE` as a fork of this process, so that modules already imported need not be imported again.

A fork behaves like a new interpreter: it has its own environment, folder, output files, signal handlers and random
state, runs the module as `__main__`, and has its own exit code. It also looks like one to other processes: the memory
that the kernel reads for /proc/<pid>/cmdline and /proc/<pid>/environ is rewritten, so the process can be found by its
marker. Only for a process with one thread that has not used a GPU. Standard library only.
"""

import contextlib
import ctypes
import logging
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

ROOM_VARIABLE: Final = "DDP_AUDIT_ROOM"
"""Padding in the environment of the first process of a chain of forks, to make room for theirs."""
ROOM_BYTES: Final = 8192
TELLING: Final = ("DDP_AUDIT_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
"""Prefixes of the variables that identify processes."""
HANDLED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2)


def room() -> dict[str, str]:
    """Return what to add to the environment of a process so that its forks can show their own environment."""
    return {ROOM_VARIABLE: "." * ROOM_BYTES}


def room_argument() -> str:
    """Return a last argument, to be ignored, for a process so that its forks can show their own command line."""
    return "." * (ROOM_BYTES // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The process that a fork becomes."""

    module: str
    arguments: tuple[str, ...]
    """Arguments of the module, as in `python -m MODULE ARGUMENTS`."""
    environment: Mapping[str, str]
    """The complete environment."""
    cwd: str
    stdout: str | None
    """File that output is appended to; None: the output of this process."""
    stderr: str | None
    new_session: bool = False

    @property
    def argv(self) -> list[str]:
        """The equivalent command line."""
        return [sys.executable, "-m", self.module, *self.arguments]


def module_command(argv: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Return (module, its arguments) of a command line `<this python> [-u] [-P] -m MODULE …`, None for any other."""
    if not argv or argv[0] != sys.executable:
        return None
    rest = [*argv[1:]]
    while rest[:1] in (["-u"], ["-P"]):  # options that this process has already
        rest = rest[1:]
    return (rest[1], tuple(rest[2:])) if rest[:1] == ["-m"] and len(rest) > 1 else None


def fork(job: Job) -> int:
    """Start `job` and return its pid. Raises OSError; a job whose files cannot be opened ends with exit code 127."""
    pid = fork_blank()
    if pid == 0:
        become(job)
    return pid


def fork_blank() -> int:
    """Fork and return the pid, 0 in the child; output still buffered in this process is not written by the child."""
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fork()


def become(job: Job) -> NoReturn:
    """Turn this process, a fresh fork, into `job`: never returns."""
    try:
        _settle(job)
    except OSError as error:
        os.write(2, f"{job.module} cannot be started: {error}\n".encode())
        os._exit(127)
    code = _run(job)
    with contextlib.suppress(Exception):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _settle(job: Job) -> None:
    signal.set_wakeup_fd(-1)
    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # as in a new program
    if job.new_session:
        os.setsid()
    _redirect(os.devnull, 0, os.O_RDONLY)
    for path, descriptor in ((job.stdout, 1), (job.stderr, 2)):
        if path is not None:
            _redirect(path, descriptor, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.chdir(job.cwd)
    os.environ.clear()
    os.environ.update({name: value for name, value in job.environment.items() if name != ROOM_VARIABLE})
    restate(job.argv, job.environment)
    _draw_anew()


def _redirect(path: str, descriptor: int, flags: int) -> None:
    opened = os.open(path, flags, 0o644)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)


def _draw_anew() -> None:
    # A new interpreter has its own random numbers; Python's `random` is reseeded after a fork, NumPy is not.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _run(job: Job) -> int:
    sys.argv = ["-m", *job.arguments]
    try:
        runpy.run_module(job.module, run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return (leaving.code or 0) & 0xFF
        sys.stderr.write(f"{leaving.code}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def restate(argv: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Write command line and environment to where the kernel reads them; what does not fit is left out, last first.

    Returns whether the kernel shows them. The variables that identify the process come first.
    """
    try:
        arguments, variables = _areas()
    except (OSError, ValueError, IndexError):
        return False
    telling_first = sorted(environment.items(), key=lambda item: not item[0].startswith(TELLING))
    shown = [f"{name}={value}" for name, value in telling_first if name != ROOM_VARIABLE]
    _fill(arguments, argv)
    written = _fill(variables, shown)
    return Path("/proc/self/environ").read_bytes().startswith(written)


def _areas() -> Iterator[tuple[int, int]]:
    """Return (begin, length) of the memory of the command line, and of the memory of the environment."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin_arguments, end_arguments, begin_variables, end_variables = (int(field) for field in fields[45:49])
    if not 0 < begin_arguments < end_arguments <= begin_variables < end_variables:
        raise ValueError("the kernel does not report where command line and environment are stored")
    yield begin_arguments, end_arguments - begin_arguments
    yield begin_variables, end_variables - begin_variables


def _fill(area: tuple[int, int], items: Sequence[str]) -> bytes:
    begin, length = area
    data = b""
    for item in items:
        encoded = os.fsencode(item) + b"\0"
        if len(data) + len(encoded) > length:
            break
        data += encoded
    ctypes.memmove(begin, data + bytes(length - len(data)), length)
    return data
