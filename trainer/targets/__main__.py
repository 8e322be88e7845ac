"""Imports registered targets in a separate process: `python -m trainer.targets [--check NAME --ranks W]`.

Prints one JSON document: without arguments a `Listing`, with `--check` the `MemberReport`s of one target.
"""

import argparse
import json
import sys
from typing import Any

from trainer.common.process import take_standard_output


def main() -> int:
    """Print the document."""
    parser = argparse.ArgumentParser(prog="python -m trainer.targets", description=__doc__)
    parser.add_argument("--check", metavar="NAME", help="call every member of this target once")
    parser.add_argument("--ranks", type=int, default=2, help="ranks whose windows are looked at")
    options = parser.parse_args()
    stream = take_standard_output()  # before anything of the user's is imported
    document: Any
    if options.check:
        from trainer.targets.checking import check_target

        document = [report.model_dump() for report in check_target(options.check, options.ranks)]
    else:
        from trainer.targets.registry import listing

        document = listing().model_dump()
    stream.write(json.dumps(document))
    stream.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
