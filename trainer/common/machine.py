"""Description of this machine, read without torch: processor, memory, operating system."""

import os
import platform
from pathlib import Path
from typing import Final


def cpu_model() -> str:
    """Return the processor's name as reported by Linux, else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def usable_cpus() -> int:
    """Return how many CPUs this process may use: all of the machine, or those that a scheduler gave it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


COMPUTES_BF16: Final = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})
"""CPU flags of instructions that multiply in BF16: the first two for x86-64, the others for 64-bit ARM.

AVX-512 alone only converts: every product is computed in FP32 there, which is slower than FP32 throughout."""


def bf16_instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool | None:
    """Return whether the processor multiplies in BF16 according to its flags, None if the system does not list them."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return None
    pairs = [line.partition(":") for line in lines]
    flags = [value.split() for name, _, value in pairs if name.strip() in ("flags", "Features")]
    return bool(COMPUTES_BF16 & set(flags[0])) if flags else None


def memory_bytes() -> int:
    """Return the physical memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def operating_system() -> str:
    """Return distribution, kernel and architecture on one line."""
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return f"{name}, kernel {platform.release()}, {platform.machine()}"
