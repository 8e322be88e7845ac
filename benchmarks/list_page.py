"""How long a page of the list of runs takes with 10,000 runs and 1,000,000 events in the database.

    python benchmarks/list_page.py [--runs 10000] [--events 1000000] [--requests 300]

Prints the median and the 95th percentile of `GET /api/v1/runs` (first page, a page far back, filtered, searched) over
a socket of this machine, service and client in one process.
"""

import argparse
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.runs.metrics import pack
from app.schema import migrate
from app.settings import Settings
from tests.support.service import Service, running_service
from trainer.contract.kinds import kinds

STATES = (("succeeded", "completed", "pass"), ("succeeded", "completed", "fail"), ("failed", "rank_exit", None))


def fill(settings: Settings, runs: int, events: int) -> None:
    """Write runs and their events straight into the database: a shape like that of real runs, only faster."""
    migrate(settings)
    connection = sqlite3.connect(settings.data_dir / "ddp-audit.db")
    params = orjson.dumps(kinds()["token-parity"].params().model_dump(mode="json")).decode()
    moment = "2026-01-01 00:00:00.000000"
    columns = "id, name, notes, pinned, kind, preset, params, launch, state, reason, verdict, created_at, gpus,"
    columns += " waiting_for, next_event_id, diagnosis, created_by, deleting"
    rows = (
        (number, f"nightly {number}", "", 0, ("token-parity", "resume")[number % 2], "quick", params, "{}",
         *STATES[number % 3], moment, "[]", "", events // runs + 1, "", "user", 0)
        for number in range(1, runs + 1)
    )  # fmt: skip
    connection.executemany(f"INSERT INTO run ({columns}) VALUES ({','.join('?' * 18)})", rows)
    stage = "INSERT INTO stage_attempt (run_id, stage, attempt, position, title, state, done, total, unit)"
    stages = ((run, name, 1, place, "", "succeeded", 9, 9, "x") for run in range(1, runs + 1)
              for place, name in enumerate(("prepare", "distributed", "compare")))  # fmt: skip
    connection.executemany(f"{stage} VALUES (?,?,?,?,?,?,?,?,?)", stages)
    tags = ((number, f"tag-{number % 7}") for number in range(1, runs + 1))
    connection.executemany("INSERT INTO run_tag (run_id, tag) VALUES (?,?)", tags)
    each = events // runs
    line = '{"seq":1,"t":1760000000.0,"type":"metrics","step":1,"values":{"loss":1.25,"rate":0.1}}'
    lines = ((run, event, "distributed", 1, event % 2, "metrics", line) for run in range(1, runs + 1)
             for event in range(1, each + 1))  # fmt: skip
    connection.executemany("INSERT INTO run_event VALUES (?,?,?,?,?,?,?)", lines)
    packed = pack([1.0] * each)
    chunks = ((run, 1, "loss", 0, "distributed", 1, each, packed, packed) for run in range(1, runs + 1))
    connection.executemany("INSERT INTO metric_chunk VALUES (?,?,?,?,?,?,?,?,?)", chunks)
    connection.commit()
    connection.close()


def measure(service: Service, requests: int, **params: Any) -> tuple[float, float]:
    """Return (median, 95th percentile) in milliseconds."""
    times = []
    for _ in range(requests):
        began = time.perf_counter()
        answer = service.get("/runs", params=params)
        times.append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200
    return statistics.median(times), statistics.quantiles(times, n=20)[-1]


def main() -> None:
    """Fill a database, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder))
        fill(settings, options.runs, options.events)
        with running_service(settings) as service:
            back = service.get("/runs", params={"limit": 200}).json()["next_cursor"]
            cases: dict[str, dict[str, Any]] = {
                "first page of 50": {},
                "page further back": {"cursor": back},
                "state and kind": {"state": "failed", "kind": "resume"},
                "tag": {"tag": "tag-3"},
                "search, last match": {"q": "nightly 17"},
            }
            print(f"{options.runs} runs, {options.events} events, n = {options.requests} requests each")
            for name, params in cases.items():
                median, late = measure(service, options.requests, **params)
                print(f"{name:24s} median {median:6.1f} ms   p95 {late:6.1f} ms")


if __name__ == "__main__":
    main()
