"""The command `trace` as a process, around programs of `tests/traced`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.support.cli import COMMAND, environment
from tests.support.traced import SCRIPTS

PYTHON: Final = sys.executable
TORCHRUN: Final = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ODD: Final = str(SCRIPTS / "odd.py")
LANGUAGE: Final = str(SCRIPTS / "language.py")


def trace(
    tmp_path: Path, *words: str, given: dict[str, str] | None = None, typed: str | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run the command in a separate folder."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    return subprocess.run(
        [str(COMMAND), "trace", *words],
        env=environment(tmp_path / "data", {"OMP_NUM_THREADS": "1", **(given or {})}),
        cwd=work,
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def runs(tmp_path: Path) -> list[dict[str, Any]]:
    """Return the runs that were recorded, oldest first."""
    done = subprocess.run(
        [str(COMMAND), "list", "--json", "--sort", "oldest"],
        env=environment(tmp_path / "data", {}),
        capture_output=True,
        text=True,
        check=True,
    )
    items: list[dict[str, Any]] = json.loads(done.stdout)["items"]
    return items
