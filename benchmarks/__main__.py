"""Runs benchmarks, each in its own process: `python -m benchmarks [NAME [options of that benchmark]]`.

Without a name all of them run, one after the other, which takes about an hour. `make bench` installs what they need
first. Exit code 1 if one failed, 2 for an unknown name.
"""

import argparse
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def names() -> list[str]:
    """Return every benchmark: the modules in this folder that are programs."""
    programs = (path for path in FOLDER.glob("*.py") if '\nif __name__ == "__main__":' in path.read_text())
    return sorted(path.stem for path in programs if path.stem != "__main__")


def main() -> int:
    """Run the requested benchmarks and return the exit code."""
    known = names()
    text = f"{__doc__}\nBenchmarks: {', '.join(known)}"
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=known, metavar="NAME")
    parser.add_argument("options", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    wanted = known if given.name is None else [given.name]
    failed = [name for name in wanted if not run(name, given.options, titled=len(wanted) > 1)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run(name: str, options: list[str], *, titled: bool) -> bool:
    """Run one benchmark from the root of the checkout and return whether it succeeded."""
    if titled:
        print(f"\n== {name}", flush=True)
    argv = [sys.executable, "-m", f"benchmarks.{name}", *options]
    return subprocess.run(argv, cwd=FOLDER.parent, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
