"""Pictures of stripes in three directions; only numpy, so that web and worker may read the names."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DIRECTIONS: Final = ("across", "down", "slanted")
SIZE: Final = 32
FILE: Final = "stripes.json"


def picture(direction: int, phase: int, contrast: int = 200) -> "NDArray[np.uint8]":
    """Return one picture of shape (32, 32, 3)."""
    import numpy as np

    rows, columns = np.mgrid[0:SIZE, 0:SIZE]
    way: Any = (rows, columns, rows + columns)[direction]
    stripes = ((way + phase) // 4 % 2) * contrast
    return np.repeat(stripes[:, :, None], 3, axis=2).astype(np.uint8)


def stored_contrast(datasets_dir: Path) -> int | None:
    """Return the description of the acquired data set; None while there is none."""
    path = datasets_dir / "stripes-stored" / FILE
    return int(json.loads(path.read_text())["contrast"]) if path.is_file() else None
