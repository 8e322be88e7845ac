"""The pages and answers about one run of 1,024 ranks on 128 nodes.

    python -m benchmarks.many_ranks [--ranks 1024] [--per-node 8] [--requests 5] [--keep DIR]

Writes the files of the ranks (start, phases, 60 events of two metrics, two lines of output each) and 360 samples of
each rank's resources, stores them as a worker does, and prints the time and the bytes of every answer, and what the
live stream of the page sends while all ranks report. `--keep` leaves the data directory for a look at the page.
"""

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import orjson
from sqlalchemy import Engine, update
from sqlmodel import col

from app.db import create_database_engine, insert_rows, table_of, write_session
from app.runs.models import RankRow, RankUsage, Run
from app.schema import migrate
from app.settings import Settings
from benchmarks.machine import header
from benchmarks.scaling_lab import active_run, line
from tests.support.service import Service, running_service
from trainer.contract.paths import AttemptPaths
from worker.intake import Intake

EVENTS: Final = 60
SAMPLES: Final = 360
HTML: Final = {"Accept": "text/html"}
LIVE_SECONDS: Final = 10.0
USAGE: Final = ("run_id", "stage", "attempt", "rank", "at", "cpu_seconds", "rss_bytes", "gpu_bytes", "gpu_percent")


def write(paths: AttemptPaths, ranks: int, per_node: int) -> None:
    """Write events and output of every rank."""
    (paths.root / "logs").mkdir()
    body = b"".join(line(number, 2) for number in range(2, EVENTS + 2))
    for rank in range(ranks):
        node = f"node{rank // per_node:03}"
        start = {"seq": 0, "t": time.time(), "type": "start", "pid": 4000 + rank, "host": node, "node": node}
        start |= {"local_rank": rank % per_node, "device": f"cuda:{rank % per_node}", "backend": "nccl"}
        start |= {"world_size": ranks, "versions": {"torch": "2.14.1"}}
        phase = {"seq": 1, "t": time.time(), "type": "phase", "phase": "train", "step": 0}
        paths.events(rank).write_bytes(orjson.dumps(start) + b"\n" + orjson.dumps(phase) + b"\n" + body)
        paths.log(rank, "stdout").write_text(f"rank {rank}: ready\nrank {rank}: step 1\n")


def add_usage(engine: Engine, run_id: int, ranks: int) -> None:
    """Store samples of every rank, five seconds apart."""
    began = time.time()
    rows = [
        (run_id, "train", 1, rank, began + 5 * place, 5.0 * place + rank / ranks, (900 + rank) << 20, 60 << 30, 97.0)
        for place in range(SAMPLES)
        for rank in range(ranks)
    ]
    with write_session(engine) as session:
        insert_rows(session.connection(), table_of(RankUsage), USAGE, rows)


def prepare(settings: Settings, ranks: int, per_node: int) -> tuple[int, AttemptPaths, Intake]:
    """Record the active run; return its number, its attempt, and what stores further events."""
    migrate(settings)
    engine = create_database_engine(settings)
    run_id, paths = active_run(engine, settings)
    with write_session(engine) as session:
        session.execute(update(Run).where(col(Run.id) == run_id).values(params={"world_size": ranks}, state="running"))
    write(paths, ranks, per_node)
    intake = Intake(engine, run_id=run_id, worker_id="bench", stage="train", attempt=1, paths=paths)
    began = time.perf_counter()
    while intake.pull():
        pass
    print(f"stored {ranks * (EVENTS + 2):,} events in {time.perf_counter() - began:.1f} s")
    with write_session(engine) as session:
        odd = update(RankRow).where(col(RankRow.run_id) == run_id, col(RankRow.rank) == ranks // 2 + 1)
        session.execute(odd.values(stalled=True))
    add_usage(engine, run_id, ranks)
    return run_id, paths, intake


def measure(service: Service, requests: int, path: str, **headers: str) -> str:
    """Return the median milliseconds, the bytes, and the bytes after compression, of an answer."""
    times, size = [], 0
    for _ in range(requests):
        began = time.perf_counter()
        answer = service.http.get(path, headers=headers)
        times.append((time.perf_counter() - began) * 1000)
        assert answer.status_code in (200, 286), answer.text[:300]
        size = len(answer.content)
    return f"{statistics.median(times):,.0f} ms | {size / 1000:,.1f} kB"


def live(service: Service, run_id: int, paths: AttemptPaths, intake: Intake, ranks: int) -> str:
    """Follow the page's stream while every rank reports once a second; return messages and kilobytes a second."""
    stopped = threading.Event()

    def report() -> None:
        number = EVENTS + 2
        while not stopped.is_set():
            for rank in range(ranks):
                with paths.events(rank).open("ab") as handle:
                    handle.write(line(number, 2))
            while intake.pull():
                pass
            number += 1
            stopped.wait(1)

    reporter = threading.Thread(target=report)
    reporter.start()
    messages, size, first = 0, 0, 0
    with service.http.stream("GET", f"/runs/{run_id}/live", headers=HTML) as stream:
        began = time.perf_counter()
        for piece in stream.iter_bytes():
            first = first or len(piece)
            messages, size = messages + piece.count(b"\n\n"), size + len(piece)
            if time.perf_counter() - began > LIVE_SECONDS:
                break
        took = time.perf_counter() - began
    stopped.set()
    reporter.join()
    return f"{messages / took:.1f} messages/s | {size / took / 1000:,.1f} kB/s"


def main() -> None:
    """Prepare the run, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--per-node", type=int, default=8)
    parser.add_argument("--requests", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="data directory to leave behind")
    options = parser.parse_args()
    print(header(f"n = {options.requests} requests each", "fastapi", "jinja2", "sqlalchemy"))
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=options.keep or Path(folder))
        run_id, paths, intake = prepare(settings, options.ranks, options.per_node)
        print(f"\n| run of {options.ranks:,} ranks | median | size |\n|---|---|---|")
        with running_service(settings) as service:
            report(service, run_id, options.requests)
            print(f"| live stream of the page | {live(service, run_id, paths, intake, options.ranks)} |")


def report(service: Service, run_id: int, requests: int) -> None:
    """Print a line for every answer."""
    answers: dict[str, tuple[str, dict[str, Any]]] = {
        "run page": (f"/runs/{run_id}", HTML),
        "list of runs": ("/runs", HTML),
        "charts of resources": (f"/runs/{run_id}/resources", HTML),
        "API: run": (f"/api/v1/runs/{run_id}", {}),
        "API: list of runs": ("/api/v1/runs", {}),
        "API: 1,000 events": (f"/api/v1/runs/{run_id}/events?limit=1000", {}),
        "API: one metric of all ranks": (f"/api/v1/runs/{run_id}/metrics?key=metric_0&max_points=300", {}),
        "API: all metrics of one rank": (f"/api/v1/runs/{run_id}/metrics?rank=7", {}),
        "API: resources": (f"/api/v1/runs/{run_id}/resources", {}),
    }
    for name, (path, headers) in answers.items():
        print(f"| {name} | {measure(service, requests, path, **headers)} |", flush=True)


if __name__ == "__main__":
    main()
