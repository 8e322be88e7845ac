"""Traced ranks of the scripts in `tests/traced`, two or more in a fork server, and what the judge says about them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from trainer.contract.result import Result
from trainer.kinds.trace.judge.judging import judge
from trainer.kinds.trace.params import TraceParams

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = ROOT / "tests" / "traced"


class Ranks:
    """The fork server."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(
        self, script: str, *arguments: str, folder: Path, world_size: int = 2, traced: bool = True, **environment: str
    ) -> list[int]:
        """Run a script and return the exit codes of its ranks."""
        request = {
            "script": str(SCRIPTS / f"{script}.py"),
            "arguments": arguments,
            "folder": str(folder),
            "world_size": world_size,
            "traced": traced,
            "environment": environment,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())["codes"]
        return codes

    def judged(self, script: str, *arguments: str, folder: Path, params: TraceParams | None = None) -> Result:
        """Run a script to its end and return what the judge says."""
        codes = self.run(script, *arguments, folder=folder, OUT=str(folder.parent / "saved.pt"))
        assert codes == [0, 0], (folder / "rank0.out").read_text()[-2000:] + (folder / "rank1.out").read_text()[-2000:]
        return judge(folder, params or TraceParams(), 0)


@contextmanager
def ranks() -> Iterator[Ranks]:
    """Yield a fork server that has imported torch."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.trace_ranks"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Ranks(process)
    finally:
        process.communicate()


def findings(result: Result, *severities: str) -> set[str]:
    """Return the names of findings, of these severities or of any."""
    found: list[Mapping[str, Any]] = result.summary["findings"]
    return {item["name"] for item in found if not severities or item["severity"] in severities}
