"""A service, its worker and commands with the guest `stripes`: a kind from a separate distribution.

`guest_path` contains the distribution as installed: the package and its `.dist-info` with the entry point. Only
processes started here find it, because the folder is only on their PYTHONPATH.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cli import COMMAND, Done, environment, start

GUEST_PATH = Path(__file__).resolve().parent / "guest_path"
PATIENCE = 90.0
"""Seconds a test waits for an expected event; several times what an idle machine needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """A running service with a guest."""

    data_dir: Path
    port: str
    http: httpx.Client

    def command(self, *arguments: str, local: bool = False) -> Done:
        """Run a command to its end: it talks to the service, or with `local` works on the data directory."""
        given = {"PYTHONPATH": str(GUEST_PATH)} | ({} if local else {"DDP_AUDIT_PORT": self.port})
        process = start(*arguments, data_dir=self.data_dir, **given)
        out, err = process.communicate(timeout=PATIENCE)
        return Done(returncode=process.returncode, stdout=out, stderr=err)

    def page(self, path: str) -> str:
        """Return a page. It must exist."""
        response = self.http.get(path, headers={"Accept": "text/html"})
        assert response.status_code == 200, response.text
        return response.text

    def api(self, path: str) -> Any:
        """Return a document of the API. It must exist."""
        response = self.http.get(f"/api/v1{path}")
        assert response.status_code == 200, response.text
        return response.json()

    def ended(self, run_id: int) -> Any:
        """Follow a run to its end and return its document."""
        with self.http.stream("GET", f"/api/v1/runs/{run_id}/stream", timeout=PATIENCE) as response:
            for _ in response.iter_lines():
                pass  # the service closes the stream after the final state
        return self.api(f"/runs/{run_id}")

    def started(self, response: httpx.Response) -> int:
        """Return the run started by a form of a page."""
        assert response.status_code == 303, response.text
        return int(response.headers["location"].rsplit("/", 1)[1])


@contextmanager
def open_house(data_dir: Path) -> Iterator[House]:
    """Yield a service whose worker is ready, and end both."""
    log = data_dir / "serve.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(COMMAND), "serve", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(data_dir, {"PYTHONPATH": str(GUEST_PATH)}),
        )
    try:
        port = _port(process, log)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            _until_ready(http, log)
            yield House(data_dir=data_dir, port=port, http=http)
    finally:
        process.terminate()  # not a kill: its worker must end, too
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _port(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        _, told, rest = log.read_text().partition("serves http://127.0.0.1:")
        if told and "/" in rest:
            return rest.partition("/")[0]
        time.sleep(0.05)
    pytest.fail(f"the service did not start\n{log.read_text()[-3000:]}")


def _until_ready(http: httpx.Client, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if http.get("/readyz").status_code == 200:
            return
        time.sleep(0.05)
    pytest.fail(f"no worker became ready\n{log.read_text()[-3000:]}")
