"""Counts processes of this control group that the kernel killed because memory ran out; standard library only."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
VMSTAT: Final = Path("/proc/vmstat")


def oom_kills(cgroups: Path = CGROUPS, membership: Path = Path("/proc/self/cgroup"), vmstat: Path = VMSTAT) -> int:
    """Return the count so far, from the control group, or from the whole machine if there is none."""
    for path in (*_candidates(cgroups, membership), vmstat):
        count = _read(path)
        if count is not None:
            return count
    return 0


def _candidates(cgroups: Path, membership: Path) -> Iterator[Path]:
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" and path != "/":
            yield cgroups / path.lstrip("/") / "memory.events"
        elif "memory" in controllers.split(","):
            yield cgroups / "memory" / path.lstrip("/") / "memory.oom_control"
    yield cgroups / "memory.events"  # a container sees its own group as the root


def _read(path: Path) -> int | None:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.strip().isdigit():
                return int(value)
    except OSError:
        return None
    return None
