"""Exit codes shared by ranks, launcher and worker."""

from typing import Final

EXIT_PREEMPTED: Final = 65
"""The rank was asked to stop, saved together with all others, and exited."""
