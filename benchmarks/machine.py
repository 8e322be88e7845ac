"""The header every benchmark prints: machine, load, versions, n."""

import importlib.metadata
import os
import platform
import sqlite3
from pathlib import Path


def cpu_name() -> str:
    """Return the processor's name as reported by the kernel."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def header(n: str, *packages: str) -> str:
    """Return machine, load, versions of `packages` and the sample count."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    return (
        f"# {cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {platform.system()} "
        f"{platform.release()}\n# python {platform.python_version()}, sqlite {sqlite3.sqlite_version}"
        f"{', ' if versions else ''}{versions}; {n}"
    )
