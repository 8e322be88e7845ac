"""SQLite and PostgreSQL side by side: ingest on one connection, 1, 2 and 4 workers, streams, and 1,024 ranks.

    python -m benchmarks scaling [--quick] [--repeat N] [--only ingest|workers|streams|ranks]

The server is started from the system's binaries, on this machine and with default durability. Both databases take turns
within one run, so that a ratio compares the same moments. Workers here do everything with the database that a worker
does, and start no attempts: on a small machine those would be what is measured.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from sqlalchemy import func
from sqlmodel import select

from app.db import create_database_engine, read_session
from app.runs.models import RunEvent
from app.settings import Settings
from benchmarks.machine import header
from benchmarks.open_streams import follow, service
from benchmarks.scaling_lab import Work, active_run, database, fill_queue, keep_writing, pin, work_off, write_files
from tests.support.postgres import Server, running_server
from trainer.contract.paths import AttemptPaths
from worker.intake import Intake

DATABASES = ("sqlite", "postgres")
TURN_SECONDS = 0.1
"""The worker's interval while a run is active."""
GOAL = 0.5
"""PostgreSQL's share of SQLite's rate."""


def main() -> None:
    """Print the header and a table per part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small numbers: whether it works, not how fast")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=["ingest", "workers", "streams", "ranks"])
    options = parser.parse_args()
    repeat = 1 if options.quick else options.repeat
    print(header(f"n = {repeat}", "sqlalchemy", "psycopg"))
    with running_server(durable=True) as server:
        server.prepare()
        with server.connect("postgres") as connection:
            found = connection.execute("SELECT version()").fetchone()
        print(f"# {str(found and found[0]).split(' on ')[0]}, on the same machine, fsync and synchronous_commit on")
        parts = {"ingest": ingest, "workers": workers, "streams": streams, "ranks": ranks}
        for name, part in parts.items():
            if options.only in {None, name}:
                part(server, repeat, quick=options.quick)


def ingest(server: Server, repeat: int, *, quick: bool) -> None:
    """Compare events per second of one intake on one connection, ten metrics per event."""
    events = 4_000 if quick else 100_000
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in DATABASES}
    for _ in range(repeat):
        for name in DATABASES:
            with database(name, server) as settings:
                rates[name].append(in_child(_ingest, settings.model_dump(), events))
    print(f"\n## ingest: events/s on one connection ({events:,} events, 10 metrics each, worker on one core)")
    print("| database | per second of wall clock | per second of the worker's CPU | rounds |\n|---|---|---|---|")
    for name, found in rates.items():
        wall, core = (statistics.median(values) for values in zip(*found, strict=True))
        print(f"| {name} | {wall:,.0f} | {core:,.0f} | {', '.join(f'{rate:,.0f}' for rate, _ in found)} |")
    ratio = statistics.median(
        there[0] / here[0] for here, there in zip(rates["sqlite"], rates["postgres"], strict=True)
    )
    print(f"PostgreSQL / SQLite: {ratio:.2f} of wall clock; goal {GOAL}: {'met' if ratio >= GOAL else 'missed'}")


def in_child(function: Any, *arguments: Any) -> Any:
    """Return what a function returns in a separate process, so that no round inherits another's state."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def _ingest(values: dict[str, Any], events: int) -> tuple[float, float]:
    pin(0)
    settings = Settings(**values)
    engine = create_database_engine(settings)
    run_id, paths = active_run(engine, settings)
    write_files(paths, 2, events // 2, 10)
    intake = Intake(engine, run_id=run_id, worker_id="bench", stage="train", attempt=1, paths=paths)
    began, worked = time.perf_counter(), time.process_time()
    while intake.pull():
        pass
    seconds, worked = time.perf_counter() - began, time.process_time() - worked
    _require(_stored(settings), events)
    engine.dispose()
    return events / seconds, events / worked


def _stored(settings: Settings) -> int:
    engine = create_database_engine(settings)
    with read_session(engine) as session:
        count = session.exec(select(func.count()).select_from(RunEvent)).one()
    engine.dispose()
    return count


def _require(found: int, wanted: int) -> None:
    if found != wanted:
        raise SystemExit(f"{found} of {wanted} events are in the database")


def workers(server: Server, repeat: int, *, quick: bool) -> None:
    """Compare runs and events per second of 1, 2 and 4 workers, each run with its whole life in the database."""
    runs, work = (8, Work(events=200)) if quick else (80, Work(events=2000))
    print(f"\n## workers: {runs} runs of {work.events:,} events of two ranks, from the queue to the final state")
    print("| database | workers | runs/s | events/s | against one worker |\n|---|---|---|---|---|")
    for name in DATABASES:
        alone = 0.0
        for count in (1, 2, 4):
            rates = []
            for _ in range(repeat):
                with database(name, server) as settings:
                    fill_queue(settings, runs)
                    rates.append(runs / work_off(settings, work, count))
                    _require(_stored(settings), runs * work.events)
            rate = statistics.median(rates)
            alone = alone or rate
            print(f"| {name} | {count} | {rate:.1f} | {rate * work.events:,.0f} | {rate / alone:.2f} |", flush=True)


def streams(server: Server, _repeat: int, *, quick: bool) -> None:
    """Compare the delay of events in streams of one web process while 1, 2 and 4 workers write."""
    seconds, held = (3.0, 8) if quick else (20.0, 40)
    print(f"\n## streams: {held} streams of one web process, one run of two ranks per worker, 10 events/s a rank")
    print("| database | workers | events sent | median delay | 99 % | web process, share of a core |")
    print("|---|---|---|---|---|---|")
    for name in DATABASES:
        for count in (1, 2, 4):
            with database(name, server) as settings:
                delays, share = _streams(settings, count, held, seconds)
            delays.sort()
            late = delays[int(0.99 * len(delays))]
            shown = f"{statistics.median(delays) * 1000:.0f} ms | {late * 1000:.0f} ms"
            print(f"| {name} | {count} | {len(delays):,} | {shown} | {share:.0%} |", flush=True)


def _streams(settings: Settings, count: int, held: int, seconds: float) -> tuple[list[float], float]:
    engine = create_database_engine(settings)
    runs = [active_run(engine, settings) for _ in range(count)]
    engine.dispose()
    context = get_context("spawn")
    delays: list[float] = []
    with _environment(settings), service(settings.data_dir) as (process, port):
        feeders = [
            context.Process(target=_feed, args=(settings.model_dump(), run_id, paths, seconds))
            for run_id, paths in runs
        ]

        async def hold() -> None:
            tasks = [asyncio.create_task(follow(port, runs[place % count][0], delays)) for place in range(held)]
            await asyncio.sleep(1)
            before = sum(process.cpu_times()[:2])
            for feeder in feeders:
                feeder.start()
            for feeder in feeders:
                await asyncio.to_thread(feeder.join)
            await asyncio.sleep(1)
            shares.append((sum(process.cpu_times()[:2]) - before) / seconds)
            for task in tasks:
                task.cancel()

        shares: list[float] = []
        asyncio.run(hold())
    return delays, shares[0]


@contextmanager
def _environment(settings: Settings) -> Iterator[None]:
    os.environ["DDP_AUDIT_DATABASE_URL"] = settings.database_url
    try:
        yield
    finally:
        del os.environ["DDP_AUDIT_DATABASE_URL"]


def _feed(values: dict[str, Any], run_id: int, paths: AttemptPaths, seconds: float) -> None:
    """Write the events of two ranks of a run, and store them as its worker."""
    writer = get_context("spawn").Process(target=keep_writing, args=(paths, 2, 10.0, seconds), kwargs={"core": 0})
    writer.start()
    _follow_files(Settings(**values), run_id, paths, lambda: not writer.is_alive())
    writer.join()


def _follow_files(settings: Settings, run_id: int, paths: AttemptPaths, ended: Any) -> list[tuple[float, float]]:
    """Pull as a worker does until `ended`; return (when, seconds) of every pull that stored something."""
    engine = create_database_engine(settings)
    intake = Intake(engine, run_id=run_id, worker_id="bench", stage="train", attempt=1, paths=paths)
    turns = []
    while not ended():
        began = time.perf_counter()
        while intake.pull():
            turns.append((began, time.perf_counter() - began))
            began = time.perf_counter()
        time.sleep(TURN_SECONDS)
    while intake.pull(final=True):
        pass
    engine.dispose()
    return turns


def ranks(server: Server, _repeat: int, *, quick: bool) -> None:
    """Let 1,024 ranks write ten events a second each, and one worker on one core store them."""
    count, rate, seconds = (64, 10.0, 4.0) if quick else (1024, 10.0, 60.0)
    total = f"{rate:g} events/s each ({count * rate:,.0f}/s)"
    print(f"\n## ranks: {count:,} ranks, {total}, {seconds:g} s, two metrics per event, worker on one core")
    print(
        "| database | written/s | written | stored | all stored after the end | transaction: median, longest | core |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in DATABASES:
        with database(name, server) as settings:
            print(f"| {name} | {in_child(_ranks, settings.model_dump(), count, rate, seconds)}", flush=True)


def _ranks(values: dict[str, Any], count: int, rate: float, seconds: float) -> str:
    settings = Settings(**values)
    engine = create_database_engine(settings)
    run_id, paths = active_run(engine, settings)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(paths.root), str(count), str(rate), str(seconds)], cwd=Path.cwd()
    )
    pin(0)
    ended: list[float] = []
    watcher = threading.Thread(target=lambda: ended.append(writer.wait() + time.perf_counter()))
    watcher.start()
    worked = time.process_time()
    turns = _follow_files(settings, run_id, paths, lambda: ended)
    behind, worked = time.perf_counter() - ended[0], time.process_time() - worked
    watcher.join()
    written = sum(sum(1 for _ in paths.events(rank).open("rb")) for rank in range(count))
    stored = _stored(settings)
    engine.dispose()
    took = ended[0] - turns[0][0]
    middle, longest = (function(taken for _, taken in turns) for function in (statistics.median, max))
    shown = f"{written / took:,.0f} | {written:,} | {stored:,} | {behind:.2f} s | {middle:.2f} s, {longest:.2f} s"
    return f"{shown} | {worked / (took + behind):.0%} |"


WRITER = """
import sys
from pathlib import Path
from benchmarks.scaling_lab import keep_writing
from trainer.contract.paths import AttemptPaths
root, ranks, rate, seconds = sys.argv[1:]
keep_writing(AttemptPaths(Path(root)), int(ranks), float(rate), float(seconds), core=1)
"""


if __name__ == "__main__":
    main()
