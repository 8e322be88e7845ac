"""What every rank does before it touches a device: tie its life to its parent and say who it is; no torch here."""

import ctypes
import os
import signal
import sys
from importlib import metadata

from trainer.common.telemetry import Telemetry

PARENT_VARIABLE = "DDP_AUDIT_PARENT_PID"
"""Set by the launcher to its own process id, so that a rank born after the launcher's death can tell."""
PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when the thread that started it ends.

    Only a second net behind the supervisor. `parent` is the pid of whoever should have started it, by default the one
    that the launcher left in the environment. Raises ProcessLookupError when the parent is gone already.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    expected = os.environ.get(PARENT_VARIABLE) if parent is None else parent
    if expected is not None and os.getppid() != int(expected):
        raise ProcessLookupError(f"the launcher (pid {expected}) ended before this rank began; nobody would stop it")


def versions() -> dict[str, str]:
    """Return the versions that matter for a result, read from package metadata without importing anything."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("torch", "torchvision", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def announce(telemetry: Telemetry, *, device: str = "cpu", backend: str = "none", world_size: int = 1) -> None:
    """Emit the `start` event; stages that need no torch call this first, the others go through `distributed`."""
    die_with_parent()
    telemetry.start(device=device, backend=backend, world_size=world_size, versions=versions())
