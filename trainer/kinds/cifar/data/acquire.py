"""Fetches a data source: `python -m trainer.kinds.cifar.data.acquire --datasets-dir D NAME [--json]`.

Exit code 0: the data is available, or nothing needs to be fetched; 1: fetching or verification failed; 2: unknown name.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from trainer.kinds.cifar.data.folders import DataProblem, list_folder
from trainer.kinds.cifar.data.preflight import check_cifar10
from trainer.kinds.cifar.data.sources import CIFAR10_FOLDER, CIFAR10_MD5, Source, parse_source

LICENCE_NOTICE: Final = (
    "The CIFAR-10 page shows no licence for the images: check their terms before any commercial use. "
    "The files stay in your data sets directory and are not shared with anyone."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired:
    """Outcome of an acquisition."""

    ok: bool
    name: str
    text: str
    """The outcome, or what to do."""
    path: str = ""
    notice: str = ""
    """Licence terms to be aware of."""


def acquire(name: str, datasets_dir: Path) -> Acquired:
    """Make a data source available in `datasets_dir`. Raises ValueError for a name that is not a source."""
    source = parse_source(name)
    if source.kind == "synthetic":
        return Acquired(ok=True, name=name, text="nothing to fetch: synthetic images are generated from the seed")
    if source.kind == "folder":
        return _look_at_folder(name, source, datasets_dir)
    return _fetch_cifar10(name, source, datasets_dir)


def _look_at_folder(name: str, source: Source, datasets_dir: Path) -> Acquired:
    path = str(source.root(datasets_dir))
    try:
        listing = list_folder(source, datasets_dir)
    except DataProblem as problem:
        return Acquired(ok=False, name=name, text=f"folder sources must be created by hand: {problem}", path=path)
    text = (
        f"nothing to fetch: {len(listing.train)} training and {len(listing.test)} test images of "
        f"{len(listing.classes)} classes are available"
    )
    return Acquired(ok=True, name=name, text=text, path=path)


def _fetch_cifar10(name: str, source: Source, datasets_dir: Path) -> Acquired:
    from torchvision.datasets import CIFAR10

    root = source.root(datasets_dir)
    path = str(root / CIFAR10_FOLDER)
    root.mkdir(parents=True, exist_ok=True)
    try:
        # Verifies the archive's checksum, unpacks it, and verifies every file again when it is opened.
        CIFAR10(root, train=True, download=True)
        CIFAR10(root, train=False, download=False)
        check_cifar10(datasets_dir)
    except (OSError, RuntimeError, DataProblem) as error:
        text = (
            f"CIFAR-10 could not be fetched or verified: {error}. Try again with a network connection, or unpack the "
            f"Python version of the archive so that {path} contains {', '.join(CIFAR10_MD5)}"
        )
        return Acquired(ok=False, name=name, text=text, path=path, notice=LICENCE_NOTICE)
    text = "CIFAR-10 is available, all checksums verified"
    return Acquired(ok=True, name=name, text=text, path=path, notice=LICENCE_NOTICE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Acquire the source named on the command line and print the outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets-dir", required=True, type=Path)
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    parser.add_argument("name", help="synthetic, cifar10 or folder:<name>")
    options = parser.parse_args(arguments)
    say = sys.stderr if options.json else sys.stdout  # torchvision's progress is also written to stderr
    if options.name == "cifar10":
        say.write(f"{LICENCE_NOTICE}\n")
        say.flush()
    try:
        outcome = acquire(options.name, options.datasets_dir)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    line = json.dumps(asdict(outcome)) if options.json else f"{outcome.text}\n{outcome.path}".strip()
    sys.stdout.write(line + "\n")
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main())
