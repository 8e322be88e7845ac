"""Many open streams on several live runs: delay of events, and memory growth of the service.

    python -m benchmarks.open_streams [--streams 200] [--runs 4] [--rate 10] [--seconds 600]

Three processes: `ddp-audit serve --no-worker`; this one, which writes every run's event lines one by one and stores
them in the database with the worker's intake; and one that holds all streams open and records the age of each event
on arrival. Prints the delays, and the service's resident memory over time.
"""

import argparse
import asyncio
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
import orjson
import psutil

from app.db import create_database_engine, write_session
from app.runs.models import Run
from app.schema import migrate
from app.settings import Settings
from benchmarks.machine import header
from tests.support.pages_data import add_run, add_stages
from trainer.contract.events import EventWriter
from trainer.contract.paths import RunPaths
from worker.intake import Intake

COMMAND = Path(sys.executable).with_name("ddp-audit")
TURN_SECONDS = 0.1
"""The worker's interval while a run is active."""
SETTLE_SECONDS = 20
"""Warm-up time for opening streams and filling caches; memory is compared after it."""


@contextmanager
def service(folder: Path) -> Iterator[tuple[psutil.Process, int]]:
    """Serve `folder` without a worker in a separate process; yield it and its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    argv = [str(COMMAND), "serve", "--no-worker", "--port", str(port), "--data-dir", str(folder)]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                httpx.get(f"http://127.0.0.1:{port}/healthz")
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield psutil.Process(process.pid), port
    finally:
        process.terminate()
        process.wait()


async def follow(port: int, run_id: int, delays: list[float]) -> None:
    """Hold one stream of a run open and record the age of every event, until either side ends it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /api/v1/runs/{run_id}/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    is_event = False
    try:
        while line := await reader.readline():
            if line.startswith(b"event: "):
                is_event = line == b"event: event\n"
            elif is_event and line.startswith(b"data: "):
                delays.append(time.time() - orjson.loads(line[6:])["t"])
    finally:
        writer.close()


def listen(port: int, runs: list[int], streams: int, seconds: float, results: Connection) -> None:
    """Open the streams evenly over the runs, and send back the delays and the number of disconnected streams."""

    async def everything() -> tuple[list[float], int]:
        delays: list[float] = []
        tasks = [asyncio.create_task(follow(port, runs[n % len(runs)], delays)) for n in range(streams)]
        _, still_open = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.ALL_COMPLETED)
        for task in still_open:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return delays, streams - len(still_open)

    results.send(asyncio.run(everything()))


class LiveRun:
    """One run like those of worker and rank: lines are appended to a rank's file and stored in the database."""

    def __init__(self, settings: Settings) -> None:
        self._engine = create_database_engine(settings)
        self.id = add_run(self._engine, "running", moves=("starting",))
        add_stages(self._engine, self.id, {"train": "running"})
        with write_session(self._engine) as session:
            session.get_one(Run, self.id).worker_id = "bench"
        paths = RunPaths(settings.runs_dir / str(self.id)).attempt("train", 1)
        paths.root.mkdir(parents=True)
        self._writer = EventWriter(paths.events(0))
        self._intake = Intake(
            self._engine, run_id=self.id, worker_id="bench", stage="train", attempt=1, paths=paths
        )  # fmt: skip

    def work(self, rate: float, stop: threading.Event) -> None:
        """Write `rate` events per second and store them in every interval, until `stop` is set."""
        began, step = time.time(), 0
        while not stop.wait(TURN_SECONDS):
            while began + step / rate <= time.time():
                self._writer.write("metrics", step=step, values={"loss": 1.0 / (1 + step), "rate": 0.1})
                step += 1
            self._intake.pull()


def measure(options: argparse.Namespace, folder: Path) -> tuple[list[float], int, list[float]]:
    """Return all delays in seconds, the number of disconnected streams, and resident MiB every ten seconds."""
    settings = Settings(data_dir=folder)
    migrate(settings)
    runs = [LiveRun(settings) for _ in range(options.runs)]
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    stop = threading.Event()
    memory = []
    with service(folder) as (process, port):
        numbers = [run.id for run in runs]
        client = context.Process(target=listen, args=(port, numbers, options.streams, options.seconds, there))
        client.start()
        workers = [threading.Thread(target=run.work, args=(options.rate, stop)) for run in runs]
        for worker in workers:
            worker.start()
        began = time.monotonic()
        while time.monotonic() - began < options.seconds - 1:
            time.sleep(min(10, options.seconds))
            memory.append(process.memory_info().rss / 2**20)
        delays, broken = here.recv()
        used = process.cpu_times()
        stop.set()
        for worker in workers:
            worker.join()
        client.join()
    print(f"CPU usage of the service: {(used.user + used.system) / options.seconds:.0%} of one core")
    return delays, broken, memory


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--rate", type=float, default=10, help="events per second of each run")
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    print(header(f"{options.streams} streams, {options.runs} runs", "fastapi", "uvicorn", "orjson"), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        delays, broken, memory = measure(options, Path(folder))
    settled = memory[int(SETTLE_SECONDS / 10) :] or memory
    late = statistics.quantiles(delays, n=20)[-1]
    print(f"{options.streams} streams on {options.runs} runs of {options.rate:g} events/s for {options.seconds:g} s")
    print(f"n = {len(delays)} arrivals; disconnected streams: {broken}")
    print(f"delay: median {statistics.median(delays):.3f} s   p95 {late:.3f} s   max {max(delays):.3f} s")
    third = max(1, len(settled) // 3)
    first, last = statistics.median(settled[:third]), statistics.median(settled[-third:])
    print(f"resident: first third {first:.1f} MiB, last third {last:.1f} MiB, largest {max(memory):.1f} MiB")


if __name__ == "__main__":
    main()
