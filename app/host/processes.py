"""Processes by pid and start time, read from /proc: liveness, ancestry and environment markers; stdlib only.

A pid alone does not identify a process: pids are reused, and start again after a reboot. Pid, start time in clock ticks
since boot and the boot id together identify a process for ever.
"""

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

PROC: Final = Path("/proc")
GONE_STATES: Final = frozenset("ZXx")
STOPPED_STATES: Final = frozenset("Tt")
TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def boot_id() -> str:
    """Return the boot id of this machine."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """The kernel's record of one process."""

    pid: int
    state: str
    """One letter: R, S, D, T (stopped), Z (zombie) …"""
    parent: int
    start: int
    """Clock ticks since boot."""
    wait_status: int
    """Meaningful only for a zombie."""

    @property
    def alive(self) -> bool:
        """Whether it is still running; a zombie only waits to be reaped."""
        return self.state not in GONE_STATES


def stat(pid: int) -> Stat | None:
    """Return the kernel's record of a process, None if there is none."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name in parentheses may contain any character
    return Stat(pid=pid, state=fields[0], parent=int(fields[1]), start=int(fields[19]), wait_status=int(fields[49]))


def all_pids() -> Iterator[int]:
    """Yield every current pid."""
    for name in os.listdir(PROC):  # noqa: PTH208  # thousands of Path objects for nothing
        if name.isdigit():
            yield int(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A permanent identity of one process, in this boot or another."""

    pid: int
    start: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> "Identity | None":
        """Return the identity of a living process, None if it is gone."""
        found = stat(pid)
        return None if found is None else cls(pid=pid, start=found.start, boot=boot_id())

    @classmethod
    def load(cls, document: dict[str, Any]) -> "Identity":
        """Invert `document`. Raises KeyError, TypeError, ValueError for any other value."""
        return cls(pid=int(document["pid"]), start=int(document["start"]), boot=str(document["boot"]))

    def document(self) -> dict[str, Any]:
        """Return the identity as JSON carries it."""
        return asdict(self)

    def stat(self) -> Stat | None:
        """Return the record of exactly this process; None if it is gone or its pid has been reused."""
        if self.boot != boot_id():
            return None
        found = stat(self.pid)
        return found if found is not None and found.start == self.start else None

    @property
    def alive(self) -> bool:
        """Whether exactly this process still runs."""
        found = self.stat()
        return found is not None and found.alive

    def open(self) -> int | None:
        """Return a pidfd, readable once the process has ended; None if it is already gone."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if self.alive:  # checked after opening: from here on the descriptor cannot refer to another process
            return descriptor
        os.close(descriptor)
        return None

    def send(self, number: int) -> bool:
        """Send a signal to exactly this process and return whether it still existed."""
        descriptor = self.open()
        if descriptor is None:
            return False
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


def own_process() -> Identity:
    """Return this process. Raises OSError on a machine without /proc."""
    found = Identity.of(os.getpid())
    if found is None:
        raise OSError("this process is not in /proc; the worker needs Linux")
    return found


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty if it is gone or not readable."""
    try:
        data = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in data.split(b"\0") if b"=" in item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def carrying(name: str, value: str) -> list[Identity]:
    """Return every living process whose environment has exactly this value for a variable."""
    wanted, found = os.fsencode(f"{name}={value}"), []
    for pid in all_pids():
        try:
            data = (PROC / str(pid) / "environ").read_bytes()
        except OSError:
            continue
        if wanted in data.split(b"\0"):
            identity = Identity.of(pid)
            if identity is not None and identity.alive:
                found.append(identity)
    return found


def children(root: int) -> list[Stat]:
    """Return every living descendant of `root`, in any session or process group."""
    by_parent: dict[int, list[Stat]] = {}
    for pid in all_pids():
        found = stat(pid)
        if found is not None:
            by_parent.setdefault(found.parent, []).append(found)
    descendants, todo = [], [root]
    while todo:
        offspring = by_parent.get(todo.pop(), [])
        descendants += offspring
        todo += [child.pid for child in offspring]
    return [child for child in descendants if child.alive]


def kill_all(processes: Iterable[Identity]) -> int:
    """Send SIGKILL to each; it also ends stopped processes. Returns how many still existed."""
    return sum(process.send(signal.SIGKILL) for process in processes)


def exit_of(wait_status: int) -> tuple[int | None, int | None]:
    """Return (exit code, signal) of a wait status; exactly one of them is None."""
    code = os.waitstatus_to_exitcode(wait_status)
    return (code, None) if code >= 0 else (None, -code)


def use_of(process: Identity) -> tuple[float, int] | None:
    """Return (CPU seconds of all threads, resident bytes) of exactly this process, None if it is gone."""
    try:
        text = (PROC / str(process.pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name in parentheses may contain anything
    if fields[0] in GONE_STATES or int(fields[19]) != process.start:
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * PAGE_BYTES
