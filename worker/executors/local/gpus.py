"""Use of the machine's GPUs over time, as one long-running `nvidia-smi` tells it line by line."""

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
"""Older numbers are not given: the tool hangs now and then."""
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Use of one GPU by whomever."""

    bytes: int
    percent: float | None
    """Share of the last moments in which some kernel ran; None where the driver does not tell."""


def parse(line: str) -> tuple[str, GpuUse] | None:
    """Return (uuid, use) of one line `uuid, MiB used, utilization`; None for anything else."""
    uuid, _, numbers = line.partition(",")
    used, comma, busy = (part.strip() for part in numbers.partition(","))
    if not comma or not used.isdigit():
        return None
    percent = float(busy) if busy.isdigit() else None
    return uuid.strip().removeprefix("GPU-"), GpuUse(bytes=int(used) * MIB, percent=percent)


class GpuWatch:
    """The tool as a child, read without waiting; started by the first question, absent where there is no tool."""

    def __init__(self, indices: Callable[[], Mapping[str, int]] = dict) -> None:
        """Take how to ask for the index of each GPU by its uuid without prefix, as the ranks count."""
        self._indices = indices
        self._process: subprocess.Popen[bytes] | None = None
        self._tried = False
        self._rest = b""
        self._known: dict[str, tuple[float, GpuUse]] = {}

    def now(self) -> dict[int, GpuUse]:
        """Return the newest use of each GPU; empty until the tool has answered."""
        if not self._tried:
            self._start()
        self._read()
        latest = time.monotonic() - FRESH_SECONDS
        indices = self._indices()
        return {indices[uuid]: use for uuid, (at, use) in self._known.items() if at >= latest and uuid in indices}

    def close(self) -> None:
        """End the tool."""
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
