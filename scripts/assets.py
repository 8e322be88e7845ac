"""Copies the third-party browser files from node_modules into app/static/vendor, which git ignores."""

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    "htmx.org/dist/htmx.min.js": "htmx.min.js",
    "htmx.org/dist/ext/hx-sse.min.js": "hx-sse.min.js",
    "htmx.org/LICENSE": "htmx.LICENSE",
    "swagger-ui-dist/swagger-ui-bundle.js": "swagger-ui-bundle.js",
    "swagger-ui-dist/swagger-ui.css": "swagger-ui.css",
    "swagger-ui-dist/LICENSE": "swagger-ui.LICENSE",
    "uplot/dist/uPlot.iife.min.js": "uplot.min.js",
    "uplot/dist/uPlot.min.css": "uplot.min.css",
    "uplot/LICENSE": "uplot.LICENSE",
}


def main() -> int:
    """Copy every file and return 0; return 1 naming what is missing."""
    source, target = ROOT / "node_modules", ROOT / "app" / "static" / "vendor"
    missing = [name for name in FILES if not (source / name).is_file()]
    if missing:
        sys.stderr.write(f"missing in {source}: {', '.join(missing)}; run: npm ci --ignore-scripts\n")
        return 1
    target.mkdir(parents=True, exist_ok=True)
    for name, short in FILES.items():
        shutil.copyfile(source / name, target / short)
    return 0


if __name__ == "__main__":
    sys.exit(main())
