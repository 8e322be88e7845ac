"""What machine this is, read without torch: processor, memory, operating system."""

import os
import platform
from pathlib import Path


def cpu_model() -> str:
    """Return the processor's name as Linux tells it, else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def memory_bytes() -> int:
    """Return the physical memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def operating_system() -> str:
    """Return distribution, kernel and architecture in one line."""
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return f"{name}, kernel {platform.release()}, {platform.machine()}"
