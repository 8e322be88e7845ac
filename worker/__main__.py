"""A worker without web service: `python -m worker [--data-dir D] [--once]`, for a database that is already migrated."""

import argparse
import sys
from pathlib import Path

from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError

from app.db import first_line, place_of, why_unavailable
from app.logs import configure
from app.settings import Settings, load_settings, refusals
from app.streams import take_over
from worker.loop import Worker


def main() -> int:
    """Work until asked to stop, or with `--once` until the queue is empty.

    Return 2 if settings are invalid, 3 if the database cannot be used at the start; later the worker waits for it.
    """
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
    try:
        worker = Worker(settings)
    except DBAPIError as error:
        sys.stderr.write(f"{unusable(settings, error)}\n")
        return 3
    if options.once:
        worker.run_once()
    else:
        worker.run_forever()
    return 0


def unusable(settings: Settings, error: DBAPIError) -> str:
    """Return why this worker cannot start, and what would work."""
    text = f"{place_of(settings)} cannot be used: {first_line(error)}"
    return text if why_unavailable(error) else f"{text}; if it is new, run: ddp-audit migrate"


if __name__ == "__main__":
    sys.exit(main())
