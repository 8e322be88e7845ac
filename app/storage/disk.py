"""Free disk in the directories the product writes to."""

import shutil
from pathlib import Path

from app.settings import Settings


def free_bytes(settings: Settings) -> dict[str, int]:
    """Return the free bytes of the data directory and the runs directory; for a missing one, of its parent."""
    places = {"data": settings.data_dir, "runs": settings.runs_dir}
    return {name: shutil.disk_usage(_existing(place)).free for name, place in places.items()}


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)
