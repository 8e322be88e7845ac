"""A Chromium, and services for it; all tests here are skipped without Chromium."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect, sync_playwright
from sqlalchemy import Engine

from app.db import create_database_engine
from app.settings import Settings
from tests.support.pages_data import fill

ROOT = Path(__file__).resolve().parents[2]
SHOTS = ROOT / "ci-artifacts" / "screenshots"
README_SHOT = ROOT / "docs" / "screenshots" / "run.png"
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
OFF = pytest.mark.parametrize("tab", [pytest.param({"java_script_enabled": False}, id="off")], indirect=True)
BOTH = pytest.mark.parametrize(
    "tab", [pytest.param({}, id="on"), pytest.param({"java_script_enabled": False}, id="off")], indirect=True
)
"""For tests that apply with and without JavaScript."""
SECTIONS = ["overview", "checks", "results", "metrics", "ranks", "log", "files", "parameters"]
"""Sections of the run page."""
PATIENCE_MS = 20_000
"""How long an action or an expectation waits for what must happen; several times what a quiet machine needs."""
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep-screenshots", action="store_true", help="rewrite the screenshot the README shows")


@dataclass(frozen=True, kw_only=True)
class Service:
    """A running `ddp-audit serve`."""

    base: str
    """Address with the path prefix, without a slash at its end."""
    settings: Settings
    runs: dict[str, int]
    """Runs that existed before it started, by name."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve(data_dir: Path, *arguments: str, prefix: str = "", **variables: str) -> Iterator[str]:
    """Start `ddp-audit serve` on a free port, yield its address, and end it; `variables` are further settings."""
    port = free_port()
    command = [sys.executable, "-m", "app.cli.main", "serve", "--port", str(port), "--data-dir", str(data_dir)]
    environment = {**os.environ, "DDP_AUDIT_ROOT_PATH": prefix, "OMP_NUM_THREADS": "1"}
    environment |= {f"DDP_AUDIT_{name.upper()}": value for name, value in variables.items()}
    log = data_dir / "serve.log"
    with log.open("w") as output:
        process = subprocess.Popen([*command, *arguments], cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        base = f"http://127.0.0.1:{port}"
        wait_for(f"{base}/healthz", process, log)
        yield base
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.2)
    pytest.fail(f"the service did not answer:\n{log.read_text()[-3000:]}")


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service without a worker, with a run of every appearance."""
    data_dir = tmp_path_factory.mktemp("pages")
    settings = Settings(data_dir=data_dir)
    engine = create_database_engine(settings)
    runs = fill(settings, engine)
    engine.dispose()
    for base in serve(data_dir, "--no-worker"):
        yield Service(base=base, settings=settings, runs=runs)


@pytest.fixture(scope="session")
def engine(service: Service) -> Iterator[Engine]:
    """The database of this service, to change it under its pages."""
    made = create_database_engine(service.settings)
    yield made
    made.dispose()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("there is no Chromium on this machine")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@dataclass(frozen=True, kw_only=True)
class Tab:
    """A page that records errors of its console."""

    page: Page
    complaints: list[str]


def open_tab(context: BrowserContext) -> Tab:
    complaints: list[str] = []
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return Tab(page=page, complaints=complaints)


class Held:
    """Holds a page's requests to `address` until they are released."""

    def __init__(self, page: Page, address: str | re.Pattern[str]) -> None:
        self.routes: list[Route] = []
        self._free = False
        page.route(address, self._keep)

    def _keep(self, route: Route) -> None:
        if self._free:
            route.continue_()
        else:
            self.routes.append(route)

    def let_go(self) -> None:
        """Release the held requests, and pass all later ones."""
        self._free = True
        for route in self.routes:
            route.continue_()


def next_frames(page: Page) -> None:
    """Wait until the page has drawn its current data."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.fixture
def tab(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Tab]:
    """A tab; parametrise it indirectly with keyword arguments of a browser context."""
    options: dict[str, Any] = getattr(request, "param", {})
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    context.set_default_timeout(PATIENCE_MS)
    opened = open_tab(context)
    yield opened
    context.close()
    assert opened.complaints == []


def shown(page: Page) -> list[str]:
    """Return the visible sections of a run's page."""
    return [name for name in SECTIONS if page.locator(f"#{name}").is_visible()]
