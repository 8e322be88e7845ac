"""Repeats the verdict of a stored run: `python -m stripes.verify --run-dir D`; one JSON document on standard output."""

import argparse
import json
import sys
from pathlib import Path

from trainer.contract.paths import RunPaths
from trainer.contract.result import Result

from .judge import judged, load


def main() -> None:
    """Compare the checks that follow from the stored history with those of the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", required=True, type=Path)
    paths = RunPaths(parser.parse_args().run_dir)
    again = judged(load(paths.artifacts))
    stored = {check.name: check for check in Result.model_validate_json(paths.result.read_bytes()).checks}
    problems = [f"{check.name} is other than stored" for check in again if check != stored[check.name]]
    rows = [{"check": check.name, "passed": check.passed} for check in again]
    line = None if problems else f"PASS stripes: {len(again)} checks follow from the history again"
    sys.stdout.write(json.dumps({"ok": not problems, "rows": rows, "problems": problems, "pass_line": line}) + "\n")


if __name__ == "__main__":
    main()
