"""Reasons of failure that the exception of a rank may stand for; all other exceptions mean `rank_exit`."""

from collections.abc import Mapping
from typing import Final

REASONS: Final = frozenset({"out_of_memory", "launch_error", "no_devices", "disk_full", "invalid_result"})
"""Words a kind may use; each is a reason of the worker's."""
COMMON: Final[Mapping[str, str]] = {
    "OutOfMemoryError": "out_of_memory",
    "MemoryError": "out_of_memory",
    "GroupInitError": "launch_error",
    "WorldSizeError": "launch_error",
    "DeviceMapError": "no_devices",
}
"""Exceptions of every kind: Python's, torch's, and those of `trainer.common.failures`."""
