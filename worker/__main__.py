"""A worker alone: `python -m worker [--data-dir D] [--once]`, as `ddp-audit worker` for a database that is migrated."""

import argparse
import sys
from pathlib import Path

from pydantic import ValidationError

from app.logs import configure
from app.settings import load_settings, refusals
from app.streams import take_over
from worker.loop import Worker


def main() -> int:
    """Work until asked to end, or with `--once` until the queue is empty; 2 for settings that are not valid."""
    take_over()  # a log that nobody can write to ends no run
    parser = argparse.ArgumentParser(prog="python -m worker", description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="where the database and the runs are")
    parser.add_argument("--once", action="store_true", help="drain the queue, then end")
    options = parser.parse_args()
    try:
        settings = load_settings(data_dir=options.data_dir)
    except ValidationError as error:
        sys.stderr.write(f"{refusals(error)}\n")
        return 2
    configure(settings)
    worker = Worker(settings)
    if options.once:
        worker.run_once()
    else:
        worker.run_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
