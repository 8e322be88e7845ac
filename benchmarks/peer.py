"""The same three operations on this service and on MLflow's tracking server, in one run, both on SQLite.

    python -m benchmarks.peer [--peer BIN/mlflow] [--runs 1000] [--points 2000] [--requests 100] [--steps 500]

A page of 50 from `--runs` runs, the history of one metric with `--points` points, and points stored per second with ten
metrics per step: MLflow with one request per step, as its client sends them, and in batches of 1,000; this service with
lines appended by a rank and the worker's intake. Requests alternate, so that both see the same noise. MLflow is not a
dependency of this product: without `--peer` it is installed once into `.venv-peer`. It is started with its own database
and ended.
"""

import argparse
import os
import socket
import statistics
import subprocess
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from app.db import create_database_engine, write_session
from app.runs.models import Run
from app.settings import Settings
from benchmarks.list_page import add_long_run, fill
from benchmarks.machine import header
from tests.support.pages_data import add_run, add_stages
from tests.support.service import Service, running_service
from trainer.contract.events import EventWriter
from trainer.contract.paths import RunPaths
from worker.intake import Intake

ENVIRONMENT = Path(__file__).resolve().parents[1] / ".venv-peer"
METRICS = 10
BATCH = 1000
"""Metrics per request; MLflow's limit."""


class Peer:
    """An MLflow tracking server with one experiment."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=f"{url}/api/2.0/mlflow", timeout=120)
        self._experiment = self.post("experiments/create", name="bench")["experiment_id"]

    def post(self, path: str, **body: Any) -> Any:
        """POST and return the response document."""
        return self._http.post(path, json=body).raise_for_status().json()

    def create_run(self, number: int) -> str:
        """Record a run with parameters and two tags, like a training script; return its MLflow id."""
        tags = [{"key": "mlflow.runName", "value": f"nightly {number}"}, {"key": "group", "value": f"{number % 7}"}]
        run = self.post("runs/create", experiment_id=self._experiment, start_time=1_760_000_000_000 + number, tags=tags)
        run_id: str = run["run"]["info"]["run_id"]
        params = [{"key": f"parameter_{index}", "value": str(index)} for index in range(12)]
        metrics = [metric(f"final_{index}", 0, number) for index in range(6)]
        self.post("runs/log-batch", run_id=run_id, params=params, metrics=metrics)
        return run_id

    def log(self, run_id: str, metrics: list[dict[str, Any]]) -> None:
        """Store metrics."""
        self.post("runs/log-batch", run_id=run_id, metrics=metrics)

    def page(self) -> int:
        """Return the number of runs on the first page of 50."""
        found = self.post("runs/search", experiment_ids=[self._experiment], max_results=50)
        return len(found["runs"])

    def history(self, run_id: str, points: int) -> int:
        """Return the number of points of one metric's history."""
        query: dict[str, str | int] = {"run_id": run_id, "metric_key": "loss", "max_results": points}
        return len(self._http.get("metrics/get-history", params=query).raise_for_status().json()["metrics"])


def metric(key: str, step: int, value: float) -> dict[str, Any]:
    """Return one metric in MLflow's format."""
    return {"key": key, "value": value, "timestamp": 1_760_000_000_000 + step, "step": step}


@contextmanager
def peer_server(command: Path, folder: Path) -> Iterator[Peer]:
    """Start the peer's server with one worker process on a free port, and end it with its children."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    store = ["--backend-store-uri", f"sqlite:///{folder}/peer.db", "--artifacts-destination", str(folder / "peer")]
    argv = [str(command), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *store]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        url, until = f"http://127.0.0.1:{port}", time.monotonic() + 180
        while time.monotonic() < until:
            try:
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.2)
        yield Peer(url)
    finally:
        os.killpg(process.pid, 15)
        process.wait()


def alternate(requests: int, *calls: Callable[[], int]) -> list[list[float]]:
    """Make every call `requests` times, alternating; return milliseconds of each."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(requests):
        for call, taken in zip(calls, times, strict=True):
            began = time.perf_counter()
            call()
            taken.append((time.perf_counter() - began) * 1000)
    return times


def compare(title: str, ours: list[float], theirs: list[float]) -> None:
    """Print medians, 95th percentiles and the ratio of the medians."""
    (m1, p1), (m2, p2) = ((statistics.median(t), statistics.quantiles(t, n=20)[-1]) for t in (ours, theirs))
    print(
        f"{title:32s} ours {m1:7.1f} ms (p95 {p1:6.1f})   peer {m2:7.1f} ms (p95 {p2:6.1f})   peer/ours {m2 / m1:5.1f}"
    )


def reading(service: Service, peer: Peer, options: argparse.Namespace) -> None:
    """Fill both and time the page and the history."""
    run_id = add_long_run(service.settings, options.points)
    names = [peer.create_run(number) for number in range(options.runs)]
    for start in range(0, options.points, BATCH):
        steps = range(start, min(start + BATCH, options.points))
        peer.log(names[-1], [metric("loss", step, 1.0 / (1 + step)) for step in steps])

    def page() -> int:
        return len(service.get("/runs", params={"limit": 50}).raise_for_status().json()["items"])

    def history() -> int:
        answer = service.get(f"/runs/{run_id}/metrics", params={"key": "loss", "max_points": options.points})
        return len(answer.raise_for_status().json()["series"][0]["steps"])

    assert page() == peer.page() == 50
    assert history() == peer.history(names[-1], options.points) == options.points
    compare(f"page of 50 from {options.runs:,} runs", *alternate(options.requests, page, peer.page))
    calls = (history, lambda: peer.history(names[-1], options.points))
    compare(f"history of {options.points:,} points", *alternate(options.requests, *calls))


def writing_here(settings: Settings, steps: int) -> float:
    """Return points per second from a rank's first line until the worker's intake has stored the last."""
    engine = create_database_engine(settings)
    run_id = add_run(engine, "running", moves=("starting",))
    add_stages(engine, run_id, {"train": "running"})
    with write_session(engine) as session:
        session.get_one(Run, run_id).worker_id = "bench"
    paths = RunPaths(settings.runs_dir / str(run_id)).attempt("train", 1)
    paths.root.mkdir(parents=True)
    intake = Intake(engine, run_id=run_id, worker_id="bench", stage="train", attempt=1, paths=paths)
    began = time.perf_counter()
    writer = EventWriter(paths.events(0))
    for step in range(steps):
        writer.write("metrics", step=step, values={f"metric_{index}": 1.0 / (1 + step) for index in range(METRICS)})
    writer.close()
    while intake.pull(final=True):
        pass
    rate = steps * METRICS / (time.perf_counter() - began)
    engine.dispose()
    return rate


def writing_there(peer: Peer, steps: int, metrics_per_request: int) -> float:
    """Return points per second that the peer stores."""
    run_id = peer.create_run(-1)
    points = [metric(f"metric_{index}", step, 1.0 / (1 + step)) for step in range(steps) for index in range(METRICS)]
    began = time.perf_counter()
    for start in range(0, len(points), metrics_per_request):
        peer.log(run_id, points[start : start + metrics_per_request])
    return len(points) / (time.perf_counter() - began)


def writing(service: Service, peer: Peer, steps: int) -> None:
    """Time three rounds of storing and print the medians."""
    ours, single, batches = [], [], []
    for _ in range(3):
        ours.append(writing_here(service.settings, steps * 20))
        single.append(writing_there(peer, steps, METRICS))
        batches.append(writing_there(peer, steps * 10, BATCH))
    here, one, many = (statistics.median(rates) for rates in (ours, single, batches))
    print(
        f"points stored a second (n = 3)   ours {here:,.0f}   peer, a request a step {one:,.0f}, ratio {here / one:.0f}"
    )
    print(f"{'':32s} peer, {BATCH:,} a request {many:,.0f}, ratio {here / many:.0f}")


def installed_peer() -> Path:
    """Return the command of an MLflow in a separate environment, installed now if necessary."""
    command = ENVIRONMENT / "bin" / "mlflow"
    if not command.exists():
        venv.create(ENVIRONMENT, with_pip=True)
        subprocess.run([ENVIRONMENT / "bin" / "pip", "install", "--quiet", "mlflow"], check=True)
    return command


def main() -> None:
    """Start both, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, help="the command mlflow in a separate environment")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    options.peer = options.peer or installed_peer()
    version = subprocess.run([options.peer, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    print(header(f"peer: {version}; n = {options.requests} requests each", "fastapi", "uvicorn", "sqlalchemy"))
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder) / "ours")
        fill(settings, options.runs, options.runs * 100)
        with running_service(settings) as service, peer_server(options.peer, Path(folder)) as peer:
            reading(service, peer, options)
            writing(service, peer, options.steps)


if __name__ == "__main__":
    main()
