"""Response time of the list of runs with 10,000 runs and 1,000,000 events in the database.

    python -m benchmarks.list_page [--runs 10000] [--events 1000000] [--points 100000] [--requests 300]

Prints the median and the 95th percentile of the list (first page, a late page, filtered, searched; API and page), of
one run's page and metrics, and the rate of its export, over a local socket, with service and client in one process.
"""

import argparse
import math
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

from app.runs.telemetry.packing import pack
from app.schema import migrate
from app.settings import Settings
from benchmarks.machine import header
from tests.support.service import Service, running_service
from trainer.contract.kinds import kinds

PINNED_EVERY = 1000
STATES = (("succeeded", "completed", "pass"), ("succeeded", "completed", "fail"), ("failed", "rank_exit", None))


def fill(settings: Settings, runs: int, events: int) -> None:
    """Write runs and their events directly to the database: the same rows as real runs, but faster."""
    migrate(settings)
    connection = sqlite3.connect(settings.data_dir / "ddp-audit.db")
    params = orjson.dumps(kinds()["token-parity"].params().model_dump(mode="json")).decode()
    moment = "2026-01-01 00:00:00.000000"
    columns = "id, name, notes, pinned, kind, preset, params, launch, state, reason, verdict, created_at, gpus,"
    columns += " waiting_for, next_event_id, diagnosis, created_by, deleting, started_at, finished_at, took_seconds"
    rows = (
        (number, f"nightly {number}", "", number % PINNED_EVERY == 0, ("token-parity", "resume")[number % 2], "quick",
         params, "{}", *STATES[number % 3], moment, "[]", "", events // runs + 1, "", "user", 0, moment, moment,
         number * 7919 % 3600)
        for number in range(1, runs + 1)
    )  # fmt: skip
    connection.executemany(f"INSERT INTO run ({columns}) VALUES ({','.join('?' * 21)})", rows)
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


def add_long_run(settings: Settings, points: int) -> int:
    """Turn the newest run into one with `points` points of one metric, in chunks of 1,000; return its number."""
    connection = sqlite3.connect(settings.data_dir / "ddp-audit.db")
    run_id = int(connection.execute("SELECT max(id) FROM run").fetchone()[0])
    for table in ("metric_chunk", "run_event"):
        connection.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))
    events = (
        (run_id, 1 + step, "distributed", 1, 0, "metrics", orjson.dumps(
            {"seq": step, "t": 1.7e9 + step, "type": "metrics", "step": step, "values": {"loss": math.sin(step)}}
        ).decode())
        for step in range(points)
    )  # fmt: skip
    connection.executemany("INSERT INTO run_event VALUES (?,?,?,?,?,?,?)", events)
    chunks = (
        (run_id, 1 + start, "loss", 0, "distributed", 1, len(steps), pack(steps), pack([math.sin(x) for x in steps]))
        for start in range(0, points, 1000)
        for steps in [[float(step) for step in range(start, min(start + 1000, points))]]
    )
    connection.executemany("INSERT INTO metric_chunk VALUES (?,?,?,?,?,?,?,?,?)", chunks)
    connection.commit()
    connection.close()
    return run_id


def measure(service: Service, requests: int, path: str, **params: Any) -> tuple[float, float]:
    """Return (median, 95th percentile) in milliseconds."""
    times = []
    for _ in range(requests):
        began = time.perf_counter()
        answer = service.http.get(path, params=params)
        times.append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200, answer.text
    return statistics.median(times), statistics.quantiles(times, n=20)[-1]


def export_rate(service: Service, run_id: int) -> float:
    """Return rows per second of the CSV export of one run."""
    began = time.perf_counter()
    rows = service.http.get(f"/api/v1/runs/{run_id}/export", params={"format": "csv"}).text.count("\n")
    return rows / (time.perf_counter() - began)


def main() -> None:
    """Fill a database, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--points", type=int, default=100_000, help="points of the long run's metric")
    parser.add_argument("--requests", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder))
        fill(settings, options.runs, options.events)
        run_id = add_long_run(settings, options.points)
        print(header(f"n = {options.requests} requests each", "fastapi", "uvicorn", "sqlalchemy"))
        print(f"# {options.runs} runs, {options.events} events, {options.points} points in run {run_id}")
        with running_service(settings) as service:
            for name, path, params in cases(service, run_id):
                median, late = measure(service, options.requests, path, **params)
                print(f"{name:34s} median {median:6.1f} ms   p95 {late:6.1f} ms")
            rates = [export_rate(service, run_id) for _ in range(5)]
            print(f"{'export, CSV':34s} median {statistics.median(rates):,.0f} rows/s (n = 5)")


def cases(service: Service, run_id: int) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (name, path, query) of every timed request."""
    api = "/api/v1/runs"
    back = service.get("/runs", params={"limit": 200}).json()["next_cursor"]
    return [
        ("API: first page of 50", api, {"limit": 50}),
        ("API: page further back", api, {"cursor": back}),
        ("API: state and kind", api, {"state": "failed", "kind": "resume"}),
        ("API: tag", api, {"tag": "tag-3"}),
        ("API: search", api, {"q": "nightly 17"}),
        ("API: metrics, 2,000 of all points", f"{api}/{run_id}/metrics", {"key": "loss", "max_points": 2000}),
        ("page: list", "/runs", {}),
        ("page: list, filtered", "/runs", {"state": "failed", "kind": "resume"}),
        ("page: list, several filters", "/runs", {"state": ["failed", "lost"], "tag": ["tag-3"], "q": "nightly 1"}),
        ("page: list, longest first", "/runs", {"sort": "longest"}),
        ("page: list, longest, filtered", "/runs", {"sort": "longest", "state": "failed", "kind": "resume"}),
        ("page: list, pinned", "/runs", {"pinned": "1"}),
        ("page: rows fetched again", "/runs/rows", {}),
        ("page: run", f"/runs/{run_id}", {}),
    ]


if __name__ == "__main__":
    main()
