"""Failure reasons that an exception of a rank can map to; all other exceptions mean `rank_exit`."""

from collections.abc import Mapping
from typing import Final

REASONS: Final = frozenset({"out_of_memory", "launch_error", "no_devices", "disk_full", "invalid_result"})
"""Reasons a kind may use; the worker knows each of them."""
COMMON: Final[Mapping[str, str]] = {
    "OutOfMemoryError": "out_of_memory",
    "MemoryError": "out_of_memory",
    "GroupInitError": "launch_error",
    "WorldSizeError": "launch_error",
    "DeviceMapError": "no_devices",
}
"""Exceptions of every kind: Python's, torch's, and those of `trainer.common.failures`."""
