"""The command line, called in the test's process, which saves a second per call, or as a separate process."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from app.cli.main import main
from app.settings import Settings
from tests.support.quiet import quiet_logs

COMMAND = Path(sys.executable).with_name("ddp-audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The outcome of a command."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        assert self.stdout.count("\n") == 1, self.stdout
        return json.loads(self.stdout)


def environment(data_dir: Path, given: dict[str, str]) -> dict[str, str]:
    """Return this process's environment with no product settings except the data directory and the given ones."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DDP_AUDIT_")}
    return clean | {"DDP_AUDIT_DATA_DIR": str(data_dir), "COLUMNS": "200"} | given


def call(*arguments: str, data_dir: Path, **given: str) -> Done:
    """Run a command to its end in this process."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    code = -1
    with patch.dict(os.environ, environment(data_dir, given), clear=True), redirect_stdout(out), redirect_stderr(err):
        try:
            main(list(arguments))
        except SystemExit as left:
            code = int(left.code or 0)
        finally:
            quiet_logs()  # they were configured to write to a stream that ends here
    out.seek(0)
    return Done(returncode=code, stdout=out.read(), stderr=err.getvalue())


def asking(settings: Settings, port: str | None, elsewhere: Path) -> Callable[..., Done]:
    """Return a function that runs a command on the data directory, or with the service at `port` from `elsewhere`."""
    data_dir, given = (settings.data_dir, {}) if port is None else (elsewhere, {"DDP_AUDIT_PORT": port})

    def ask(*arguments: str) -> Done:
        return call(*arguments, data_dir=data_dir, **given)

    return ask


def start(*arguments: str, data_dir: Path, **given: str) -> "subprocess.Popen[str]":
    """Start a command as a separate process."""
    return subprocess.Popen(
        [str(COMMAND), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(data_dir, given),
    )
