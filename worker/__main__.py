"""A worker alone: `python -m worker [--data-dir D] [--once]`; what the command line's `worker` starts."""

import argparse
import sys
from pathlib import Path

from app.logs import configure
from app.settings import load_settings
from worker.loop import Worker


def main() -> int:
    """Work until asked to end, or with `--once` until the queue is empty."""
    parser = argparse.ArgumentParser(prog="python -m worker", description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="where the database and the runs are")
    parser.add_argument("--once", action="store_true", help="drain the queue, then end")
    options = parser.parse_args()
    settings = load_settings(data_dir=options.data_dir)
    configure(settings)
    worker = Worker(settings)
    if options.once:
        worker.run_once()
    else:
        worker.run_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
