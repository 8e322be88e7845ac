"""Rank files into SQLite: events per second on one core, and the worker's memory over a million events.

Run: `python -m benchmarks.ingest [--events N] [--repeat N]`
Measures `worker.intake` as used by the worker: real files, real database, ten metrics per event.
"""

import argparse
import os
import resource
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import orjson

from app.db import create_database_engine, write_session
from app.runs import queue
from app.runs.models import StageAttempt
from app.schema import migrate
from app.settings import Settings
from benchmarks.machine import header
from trainer.contract.paths import RunPaths
from worker.intake import Intake

METRICS = 10
RANKS = 2
TARGET_PER_SECOND = 40_000
TARGET_MEGABYTES = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One measurement."""

    wall: float
    """Events per second of wall clock."""
    core: float
    """Events per second of CPU time."""
    before: float
    """MB resident before."""
    peak: float
    """MB resident at the peak."""


def main() -> None:
    """Print the header and one line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000, help="events per timed round")
    parser.add_argument("--repeat", type=int, default=3, help="timed rounds")
    parser.add_argument("--memory-events", type=int, default=1_000_000, help="events of the memory round; 0 skips it")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(header(f"n = {options.repeat}, process pinned to one core", "orjson", "sqlalchemy"))
    rounds = [round_of(options.events) for _ in range(options.repeat)]
    for name, rates in (("core", [item.core for item in rounds]), ("wall", [item.wall for item in rounds])):
        median = statistics.median(rates)
        every = ", ".join(f"{rate:,.0f}" for rate in rates)
        print(f"events/s of {name:<5} median {median:>9,.0f}  {median / TARGET_PER_SECOND:.2f} of 40,000  ({every})")
    if options.memory_events:
        found = round_of(options.memory_events)
        print(
            f"memory            {found.before:.0f} MB before, {found.peak:.0f} MB peak over {options.memory_events:,} "
            f"events: {found.peak / TARGET_MEGABYTES:.2f} of {TARGET_MEGABYTES} MB ({found.core:,.0f} events/s of core)"
        )


def round_of(events: int) -> Round:
    """Ingest `events` events, ten metrics each, and measure."""
    with tempfile.TemporaryDirectory(prefix="ddp-audit-ingest-") as folder:
        settings = Settings(data_dir=Path(folder))
        migrate(settings)
        engine = create_database_engine(settings)
        with write_session(engine) as session:
            run = queue.insert_run(session, kind="token-parity", params={}, worker_id="bench")
            run_id = queue.number_of(run)
            session.add(StageAttempt(run_id=run_id, stage="train", attempt=1, position=0, state="running"))
        paths = RunPaths(settings.runs_dir / str(run_id)).attempt("train", 1)
        for rank in range(RANKS):
            write_events(paths.events(rank), events // RANKS)
        intake = Intake(engine, run_id=run_id, worker_id="bench", stage="train", attempt=1, paths=paths)
        before, began, worked = resident(), time.perf_counter(), time.process_time()
        while intake.pull():
            pass
        seconds, worked = time.perf_counter() - began, time.process_time() - worked
        taken = sum(cursor.events for cursor in intake._tails.cursors.values())
        if taken != events // RANKS * RANKS:
            raise SystemExit(f"{taken} of {events} events arrived")
        engine.dispose()
    return Round(wall=taken / seconds, core=taken / worked, before=before, peak=peak())


def write_events(path: Path, count: int) -> None:
    """Write `count` metrics events like a rank."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [f"metric_{index}" for index in range(METRICS)]
    with path.open("wb") as handle:
        for number in range(count):
            values = {name: number * 0.001 + index + 1 / 3 for index, name in enumerate(names)}
            event = {"seq": number, "t": 1.7e9 + number, "type": "metrics", "step": number, "values": values}
            handle.write(orjson.dumps(event) + b"\n")


def resident() -> float:
    """Return resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def peak() -> float:
    """Return the largest resident memory of this process so far in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main()
