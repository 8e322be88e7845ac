"""From an event's own time to its arrival on an open stream, at 200 events a second.

    python benchmarks/stream_delay.py [--seconds 10] [--rate 200] [--streams 5]

Events are stored in batches at the worker's pace, so the wait for the next batch is part of the delay; a real service
streams them to real clients. Prints median, 95th percentile and maximum.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.db import write_session
from app.settings import Settings
from tests.support.pages_data import add_events, add_run, add_stages
from tests.support.service import Service, messages, running_service

INGEST_SECONDS = 0.1
"""The worker's turn while a run is going on."""


def follow(service: Service, run_id: int, delays: list[float], count: int) -> None:
    """Read one stream and note how old each event is when it arrives."""
    seen = 0
    with service.client() as client, client.stream("GET", f"/api/v1/runs/{run_id}/stream") as response:
        for message in messages(response):
            if message.type == "event":
                delays.append(time.time() - message.data["t"])
                seen += 1
            if seen == count:
                return


def feed(service: Service, run_id: int, rate: int, seconds: float) -> None:
    """Store events at `rate`, in the batches and at the pace the worker stores them in."""
    began, written = time.time(), 0
    while written < rate * seconds:
        time.sleep(INGEST_SECONDS)
        due = int(min((time.time() - began) * rate, rate * seconds))
        batch = [{"type": "phase", "phase": "a", "step": n, "t": began + n / rate} for n in range(written, due)]
        with write_session(service.engine) as session:
            add_events(session, run_id, "train", batch)
        written = due


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--streams", type=int, default=5)
    options = parser.parse_args()
    delays: list[float] = []
    with tempfile.TemporaryDirectory() as folder, running_service(Settings(data_dir=Path(folder))) as service:
        run_id = add_run(service.engine, "running", moves=("starting",))
        add_stages(service.engine, run_id, {"train": "running"})
        count = int(options.rate * options.seconds)
        readers = [
            threading.Thread(target=follow, args=(service, run_id, delays, count)) for _ in range(options.streams)
        ]
        for reader in readers:
            reader.start()
        feed(service, run_id, options.rate, options.seconds)
        for reader in readers:
            reader.join(60)
    late = statistics.quantiles(delays, n=20)[-1]
    print(f"{options.streams} streams, {options.rate} events/s for {options.seconds:g} s, n = {len(delays)}")
    print(f"median {statistics.median(delays):.3f} s   p95 {late:.3f} s   max {max(delays):.3f} s")


if __name__ == "__main__":
    main()
