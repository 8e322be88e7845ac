"""Puts stored stripes into the data sets directory: `python -m stripes.acquire --datasets-dir D NAME [--json]`."""

import argparse
import json
import sys
from pathlib import Path

from .drawing import FILE


def main() -> int:
    """Write the data set and report it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets-dir", required=True, type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("name")
    options = parser.parse_args()
    if options.name == "stripes-drawn":
        text = "nothing to fetch: these stripes are drawn"
    else:
        folder = options.datasets_dir / options.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(json.dumps({"contrast": 180}))
        text = "the stripes are in place"
    document = {"ok": True, "name": options.name, "text": text}
    sys.stdout.write((json.dumps(document) if options.json else text) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
