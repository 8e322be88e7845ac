"""Exit codes with a meaning that ranks, launcher and worker share."""

from typing import Final

EXIT_PREEMPTED: Final = 65
"""The rank was asked to go, saved together with all others, and left."""
