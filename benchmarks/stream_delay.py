"""Delay from the time of an event to its arrival on an open stream, at 200 events per second.

    python -m benchmarks.stream_delay [--seconds 10] [--rate 200] [--streams 5]

Lines are written to a rank's file one by one, the worker's intake stores them in the database, and a real service
streams them to real clients over sockets. Prints median, 95th percentile and maximum.
"""

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

from app.db import write_session
from app.runs.models import Run
from app.settings import Settings
from benchmarks.machine import header
from tests.support.pages_data import add_run, add_stages
from tests.support.service import Service, messages, running_service
from trainer.contract.events import EventWriter
from trainer.contract.paths import RunPaths
from worker.intake import Intake

TURN_SECONDS = 0.1
"""The worker's interval while a run is active."""


def follow(service: Service, run_id: int, delays: list[float], count: int) -> None:
    """Read one stream and record the age of each event when it arrives."""
    seen = 0
    with service.client() as client, client.stream("GET", f"/api/v1/runs/{run_id}/stream") as response:
        for message in messages(response):
            if message.type == "event":
                delays.append(time.time() - message.data["t"])
                seen += 1
            if seen == count:
                return


def write(path: Path, rate: int, seconds: float) -> None:
    """Write event lines one by one at `rate`, like a rank."""
    writer, began = EventWriter(path), time.time()
    for number in range(int(rate * seconds)):
        time.sleep(max(0.0, began + number / rate - time.time()))
        writer.write("phase", phase="train", step=number)
    writer.close()


def ingest(intake: Intake, count: int) -> None:
    """Store the lines in the database, interval by interval, until all are stored."""
    taken = 0
    while taken < count:
        time.sleep(TURN_SECONDS)
        intake.pull()
        taken = sum(cursor.events for cursor in intake._tails.cursors.values())


def measure(options: argparse.Namespace, folder: Path) -> list[float]:
    """Return the age in seconds of every event on arrival, over all streams."""
    delays: list[float] = []
    with running_service(Settings(data_dir=folder)) as service:
        run_id = add_run(service.engine, "running", moves=("starting",))
        add_stages(service.engine, run_id, {"train": "running"})
        paths = RunPaths(service.settings.runs_dir / str(run_id)).attempt("train", 1)
        paths.root.mkdir(parents=True)
        with write_session(service.engine) as session:
            session.get_one(Run, run_id).worker_id = "bench"
        intake = Intake(service.engine, run_id=run_id, worker_id="bench", stage="train", attempt=1, paths=paths)
        count = int(options.rate * options.seconds)
        jobs = [threading.Thread(target=follow, args=(service, run_id, delays, count)) for _ in range(options.streams)]
        jobs.append(threading.Thread(target=ingest, args=(intake, count)))
        for job in jobs:
            job.start()
        write(paths.events(0), options.rate, options.seconds)
        for job in jobs:
            job.join(60)
    return delays


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--streams", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        delays = measure(options, Path(folder))
    print(header(f"n = {len(delays)} arrivals", "fastapi", "uvicorn", "orjson"))
    late = statistics.quantiles(delays, n=20)[-1]
    print(f"{options.streams} streams, {options.rate} events/s for {options.seconds:g} s, n = {len(delays)}")
    print(f"median {statistics.median(delays):.3f} s   p95 {late:.3f} s   max {max(delays):.3f} s")


if __name__ == "__main__":
    main()
