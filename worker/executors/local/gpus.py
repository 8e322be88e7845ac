"""Usage of the machine's GPUs over time, read line by line from one long-running `nvidia-smi`."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

QUERY: Final = ("--query-gpu=uuid,memory.used,utilization.gpu", "--format=csv,noheader,nounits")
EVERY_SECONDS: Final = 2
FRESH_SECONDS: Final = 10.0
"""Older numbers are not returned: nvidia-smi sometimes hangs."""
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Total usage of one GPU."""

    bytes: int
    percent: float | None
    """Share of recent time during which a kernel ran; None if the driver does not report it."""


def parse(line: str) -> tuple[str, GpuUse] | None:
    """Parse one line `uuid, MiB used, utilization`; None for anything else."""
    uuid, _, numbers = line.partition(",")
    used, comma, busy = (part.strip() for part in numbers.partition(","))
    if not comma or not used.isdigit():
        return None
    percent = float(busy) if busy.isdigit() else None
    return uuid.strip().removeprefix("GPU-"), GpuUse(bytes=int(used) * MIB, percent=percent)


class GpuWatch:
    """nvidia-smi as a child process, read without blocking; started on first use, inactive if not installed."""

    def __init__(self, indices: Callable[[], Mapping[str, int]] = dict) -> None:
        """Take a function that returns the index of each GPU, as used by the ranks, by UUID without prefix."""
        self._indices = indices
        self._process: subprocess.Popen[bytes] | None = None
        self._tried = False
        self._rest = b""
        self._known: dict[str, tuple[float, GpuUse]] = {}

    def now(self) -> dict[int, GpuUse]:
        """Return the latest usage of each GPU; empty until nvidia-smi has reported."""
        if not self._tried:
            self._start()
        self._read()
        latest = time.monotonic() - FRESH_SECONDS
        indices = self._indices()
        return {indices[uuid]: use for uuid, (at, use) in self._known.items() if at >= latest and uuid in indices}

    def close(self) -> None:
        """End nvidia-smi."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def _start(self) -> None:
        self._tried = True
        argv = ("nvidia-smi", *QUERY, f"--loop={EVERY_SECONDS}")
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            if self._process.stdout is not None:
                os.set_blocking(self._process.stdout.fileno(), False)

    def _read(self) -> None:
        if self._process is None or self._process.stdout is None:
            return
        try:
            data = os.read(self._process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            found = parse(line.decode(errors="replace"))
            if found is not None:
                self._known[found[0]] = (time.monotonic(), found[1])
        if not data:
            self.close()
