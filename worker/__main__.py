"""A worker without web service: `python -m worker [--data-dir D] [--once]`, for a database that is already migrated."""

import argparse
import sys
from pathlib import Path

from pydantic import ValidationError

from app.logs import configure
from app.settings import load_settings, refusals
from app.streams import take_over
from worker.loop import Worker


def main() -> int:
    """Work until asked to stop, or with `--once` until the queue is empty; return 2 if settings are invalid."""
    take_over()  # a log that cannot be written does not end a run
    parser = argparse.ArgumentParser(prog="python -m worker", description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="folder of the database and the runs")
    parser.add_argument("--once", action="store_true", help="drain the queue, then exit")
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
