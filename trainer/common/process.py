"""What processes do before they use a device: die with their parent, emit `start`, own standard output; no torch."""

import ctypes
import os
import signal
import sys
from importlib import metadata
from typing import TextIO

from trainer.common.telemetry import Telemetry

PARENT_VARIABLE = "DDP_AUDIT_PARENT_PID"
"""Set by the launcher to its own process id, so that a rank started after the launcher's death can detect it."""
WARNING_VARIABLE = "DDP_AUDIT_WARNING"
"""Set by what starts the ranks: a text about this machine that the first rank of it reports."""
PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when the thread that started it ends.

    Only a safety net behind the supervisor. `parent` is the pid of the expected parent, by default the launcher's pid
    from the environment. Raises ProcessLookupError if the parent is already gone.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    expected = os.environ.get(PARENT_VARIABLE) if parent is None else parent
    if expected is not None and os.getppid() != int(expected):
        raise ProcessLookupError(
            f"the launcher (pid {expected}) ended before this rank started; nothing would stop this rank"
        )


def versions() -> dict[str, str]:
    """Return the versions relevant to a result, read from package metadata without importing anything."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("torch", "torchvision", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def announce(telemetry: Telemetry, *, device: str = "cpu", backend: str = "none", world_size: int = 1) -> None:
    """Emit the `start` event; stages without torch call this first, the others use `distributed`."""
    die_with_parent()
    telemetry.start(device=device, backend=backend, world_size=world_size, versions=versions())
    warning = os.environ.get(WARNING_VARIABLE, "")
    if warning and os.environ.get("LOCAL_RANK", "0") == "0":
        telemetry.message(warning, "warning")


def take_standard_output() -> TextIO:
    """Return a stream to standard output, and send what libraries print there to standard error.

    Gloo of torch 2.8 reports its connections on standard output, also in forked children.
    """
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return stream
