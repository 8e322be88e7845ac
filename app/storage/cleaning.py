"""Safe removal from the data directory: its location and the origin of data sets are checked.

Ended runs are removed by a retention policy and orphans by `app.storage.orphans`; data sets are removed here.
"""

import json
from pathlib import Path
from typing import Final

from app.runs.errors import refused
from app.settings import Settings
from trainer.contract.files import write_json_atomically
from trainer.contract.leftovers import is_leftover

ACQUIRED: Final = ".acquired.json"
"""Names in the data sets directory that `acquire` put there; other entries were added by hand."""


def check_runs_place(settings: Settings) -> None:
    """Raise Refused if runs are stored in a directory that is not dedicated to the product."""
    _check_place(settings, settings.runs_dir, "RUNS_DIR")


def _check_place(settings: Settings, place: Path, name: str) -> None:
    data_dir = settings.data_dir.resolve()
    if data_dir in {Path("/"), Path.home().resolve()} or data_dir in Path(__file__).resolve().parents:
        raise refused("DATA_DIR", f"{data_dir} is not dedicated to ddp-audit; nothing is removed there")
    if not place.resolve().is_relative_to(data_dir) or place.resolve() == data_dir:
        raise refused(name, f"{place} is outside the data directory {data_dir}; remove files there by hand")


def acquired_data_sets(settings: Settings) -> list[Path]:
    """Return the data sets that `acquire` put there, by name. Raises Refused if nothing may be removed."""
    _check_place(settings, settings.datasets_dir, "DATASETS_DIR")
    paths = (settings.datasets_dir / name for name in sorted(acquired_names(settings)))
    return [path for path in paths if path.exists()]


def acquired_names(settings: Settings) -> set[str]:
    """Return the names that `acquire` has put into the data sets directory."""
    try:
        names = json.loads((settings.datasets_dir / ACQUIRED).read_text())
    except (OSError, ValueError):
        return set()
    return {name for name in names if isinstance(name, str) and Path(name).name == name and not is_leftover(name)}


def note_acquired(settings: Settings, names: set[str]) -> None:
    """Record that `acquire` put `names` into the data sets directory."""
    new = {name for name in names if not is_leftover(name)}  # a file manager may have created files in the meantime
    if new:
        write_json_atomically(settings.datasets_dir / ACQUIRED, sorted(acquired_names(settings) | new))
