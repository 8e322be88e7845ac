"""Kills or stops one random process per round and checks that the run reports it truthfully.

Run: `python -m benchmarks.chaos [--rounds 100] [--seed 47] [--only ROUND]`
Every round starts a real two-rank torchrun job under a real worker and a web process, picks a victim
(worker, web, shim, agent, rank 0, rank 1), a signal (SIGKILL, SIGSTOP) and a time after the victim's start, restarts
what an operator would restart, and waits for the final state. In every tenth round the worker is stopped inside a
write transaction: then a write through the web process must succeed and the worker must continue without help. A round
is reproducible by seed and number. Every fault is printed below its round. Exit code 1 if a round failed.
"""

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.host.processes import Identity
from app.runs.models import Run
from app.runs.states import State
from benchmarks.chaos_lab import Service, is_stopped, process_of, stop_while_writing
from benchmarks.machine import header
from tests.support.worker_lab import Lab, open_lab

VICTIMS = ("worker", "web", "shim", "agent", "rank 0", "rank 1")
DEEDS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
HOLD = "stop writing"
"""The deed of every tenth round: the worker is stopped inside a write transaction."""
HOLD_EVERY = 10
HOLD_SECONDS = 20.0
LATEST_SECONDS = 7.0
BIRTH_SECONDS = 60.0
FINAL_SECONDS = 180.0
END_SECONDS = 30.0
SETTINGS = {"hang_seconds": 10.0, "stall_seconds": 3.0, "start_seconds": 45.0, "stop_grace_seconds": 3.0}
JOB: dict[str, Any] = {"steps": 100, "step_seconds": 0.05, "meeting": "files", "save_every": 20, "stages": 1}


@dataclass(slots=True, kw_only=True)
class Round:
    """One round: what was done, and the outcome of the run."""

    number: int
    victim: str
    deed: str
    moment: float
    hit: bool = False
    worked: bool = False
    """Whether the victim still had work to do."""
    begun: bool = False
    """Whether the victim had sent its first event, if it is a rank."""
    run: Run | None = None
    faults: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Keep any error as a fault, with its text and where it was raised: the next round must be played too."""
        try:
            yield
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = str(error).strip() or f"in {place.name}: {place.line}"
            self.faults.append(f"{what}: {type(error).__name__}: {text}")

    def text(self) -> str:
        """Return the row of the table, and every fault below it."""
        indented = (f"       {line}" for fault in self.faults for line in fault.splitlines())
        return "\n".join([self._row(), *indented])

    def _row(self) -> str:
        run, verdict = self.run, "holds" if not self.faults else f"{len(self.faults)} faults"
        state = f"{run.state}/{run.reason}" if run else "-"
        rank = (run.failure or {}).get("rank") if run else None
        what = f"{self.deed} {self.victim}" if self.hit else f"({self.deed} {self.victim}: was not there)"
        return f"{self.number:>5}  {what:<34} {self.moment:5.1f} s  {state:<26} {rank!s:<5} {verdict}"


def main() -> int:
    """Run the rounds, print the table, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=47)
    parser.add_argument("--only", type=int, help="repeat only this round")
    options = parser.parse_args()
    numbers = [options.only] if options.only is not None else list(range(1, options.rounds + 1))
    print(table_head(options.seed, len(numbers)))
    played: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="ddp-audit-chaos-") as folder, open_lab(Path(folder), **SETTINGS) as lab:
        service = Service(lab)
        lab.worker()
        try:
            for number in numbers:
                played.append(play(lab, service, draw(options.seed, number), options.seed))
                print(played[-1].text(), flush=True)
        finally:
            service.process.kill()
            service.process.wait()
    print(summary(played))
    return 1 if any(this.faults for this in played) else 0


def summary(played: list[Round]) -> str:
    """Return how many rounds hold, and how often each deed met its victim."""
    held = sum(not this.faults for this in played)
    met = {deed: sum(this.hit for this in played if this.deed == deed) for deed in sorted({*DEEDS, HOLD})}
    counts = ", ".join(f"{deed} {count}" for deed, count in met.items())
    return f"{held} of {len(played)} rounds hold; deeds that met their victim: {counts}"


def table_head(seed: int, rounds: int) -> str:
    """Return machine, versions, n and the head of the table."""
    columns = f"round  {'deed':<34} {'moment':>7}  {'outcome':<26} rank  judgement"
    return f"{header(f'n = {rounds}, seed {seed}', 'torch')}\n{columns}"


def draw(seed: int, number: int) -> Round:
    """Return the plan of a round, determined by seed and number."""
    rng = random.Random(f"{seed}:{number}")
    victim, deed, moment = rng.choice(VICTIMS), rng.choice(sorted(DEEDS)), rng.uniform(0.2, LATEST_SECONDS)
    if number % HOLD_EVERY == 0:
        victim, deed = "worker", HOLD
    return Round(number=number, victim=victim, deed=deed, moment=moment)


def play(lab: Lab, service: Service, this: Round, seed: int) -> Round:
    """Run one round and judge it; everything that goes wrong is recorded as a fault."""
    run_id, victim = None, None
    with this.noting("the round was interrupted"):
        run_id = lab.submit(**JOB)
        lab.until(lambda: find(lab, service, run_id, this.victim), f"birth of {this.victim}", BIRTH_SECONDS)
        time.sleep(this.moment)
        victim = find(lab, service, run_id, this.victim)
        if victim is not None:
            do(lab, this, run_id, victim, seed)
        repair(lab, service, this, run_id)
    if run_id is not None:
        with this.noting("no end"):
            this.run = lab.run(run_id)
            this.run = lab.finished(run_id, FINAL_SECONDS)
        if victim is not None and this.hit and this.deed == HOLD and is_stopped(victim):
            this.faults.append("nobody continued the worker")
        if victim is not None and this.hit and this.deed != "kill":
            victim.send(signal.SIGCONT)
        with this.noting("no judgement"):
            check(lab, this, run_id)
    with this.noting("tidying up"):
        tidy(lab, service, this, run_id)
    return this


def do(lab: Lab, this: Round, run_id: int, victim: Identity, seed: int) -> None:
    """Carry out the planned kill or stop."""
    newest = last_event(lab, run_id, this.victim)
    this.begun = this.victim.startswith("rank") and newest is not None
    this.worked = not State(lab.run(run_id).state).is_final and newest != "end"
    if this.deed == HOLD:
        rng = random.Random(f"{seed}:{this.number}:{HOLD}")
        database = Path(str(lab.settings.database.database))
        this.hit = stop_while_writing(victim, database, seconds=HOLD_SECONDS, rng=rng)
    else:
        this.hit = victim.send(DEEDS[this.deed])


def find(lab: Lab, service: Service, run_id: int, name: str) -> Identity | None:
    """Return the current process of a role, None if there is none."""
    if name == "web":
        return Identity.of(service.process.pid)
    if name == "worker":
        return Identity.of(lab.workers[-1].pid)
    return process_of(lab, run_id, name)


def last_event(lab: Lab, run_id: int, victim: str) -> str | None:
    """Return the type of the newest event of the victim's rank, of rank 0 for other victims."""
    rank = int(victim[-1]) if victim.startswith("rank") else 0
    path = lab.paths(run_id).attempt("stage-1", 1).events(rank)
    lines = path.read_bytes().splitlines() if path.exists() else []
    return str(json.loads(lines[-1])["type"]) if lines else None


def repair(lab: Lab, service: Service, this: Round, run_id: int) -> None:
    """Restart what an operator would: a gone or stopped worker or web process; write if the worker holds the lock."""
    if not this.hit:
        return
    if this.deed == HOLD:
        lab.until(service.listens, "the web process", BIRTH_SECONDS)
        with this.noting("a write while the worker was stopped in its own"):
            service.edit(run_id)
    elif this.victim == "worker":
        if this.deed == "kill":
            lab.workers[-1].wait()
        lab.worker()
    elif this.victim == "web" and this.deed == "kill":
        service.process.wait()
        service.start()


def check(lab: Lab, this: Round, run_id: int) -> None:
    """Record everything that the run reported wrongly."""
    run = lab.run(run_id)
    if (run.state, run.reason) not in allowed(this):
        this.faults.append(f"{run.state}/{run.reason} is not the truth: {run.diagnosis}")
    rank = (run.failure or {}).get("rank")
    if this.victim.startswith("rank") and run.state == "failed" and rank != int(this.victim[-1]):
        this.faults.append(f"rank {rank} is named, which is the wrong one: {run.diagnosis}")
    with this.noting("events"):
        lab.assert_events_complete(run_id)
    left = lab.processes(run_id)
    if left:
        this.faults.append(f"{len(left)} processes are left")
    if run.gpus or run.lease_until is not None:
        this.faults.append("devices are still held")


def tidy(lab: Lab, service: Service, this: Round, run_id: int | None) -> None:
    """Leave one worker, a web process and nothing of the run for the next round."""
    if lab.workers[-1].poll() is not None:
        lab.worker()
    for worker in lab.workers[:-1]:
        if worker.poll() is not None:
            continue
        worker.send_signal(signal.SIGCONT)
        worker.terminate()
        try:
            worker.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            this.faults.append(f"a worker did not end within {END_SECONDS:g} s of its TERM")
            worker.kill()
            worker.wait()
    del lab.workers[:-1]
    if service.process.poll() is not None:
        service.start()
    if run_id is not None and not State(lab.run(run_id).state).is_final:
        lab.cancel(run_id)
        for process in lab.processes(run_id):
            process.send(signal.SIGKILL)


def allowed(this: Round) -> set[tuple[str, str | None]]:
    """Return the outcomes that are true for what was done."""
    good: tuple[str, str | None] = ("succeeded", "completed")
    if not this.hit or this.victim in {"worker", "web"} or (this.victim == "shim" and this.deed == "stop"):
        return {good}
    table: dict[tuple[str, str], set[tuple[str, str | None]]] = {
        ("shim", "kill"): {("lost", "worker_lost")},
        ("agent", "kill"): {("failed", "launch_error")},
        # If it is stopped before it has started the ranks, it never will; afterwards they work without it.
        ("agent", "stop"): {good, ("failed", "launch_error")},
        ("rank", "kill"): {("failed", "rank_signal")},
        ("rank", "stop"): {("failed", "hang" if this.begun else "launch_error")},
    }
    truths = table[this.victim.split()[0], this.deed]
    # A victim that had finished its work when the signal took effect changes nothing.
    return truths if this.worked else truths | {good}


if __name__ == "__main__":
    sys.exit(main())
