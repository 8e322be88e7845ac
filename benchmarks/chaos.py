"""Kills or stops one random process per round and checks that the run does not lie about it.

Run: `python -m benchmarks.chaos [--rounds 20] [--seed 47] [--only ROUND]`
Every round starts a real two-rank torchrun job under a real worker with a web process beside it, picks a victim
(worker, web, shim, agent, rank 0, rank 1), a deed (SIGKILL, SIGSTOP) and a moment after the victim's birth, restarts
what a person would restart, and waits for the final state. Seed and number of a round repeat it. Exit code 1 when a
round did not hold.
"""

import argparse
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.host import processes
from app.host.processes import Identity
from app.runs.models import Run
from app.runs.states import State
from benchmarks.machine import header
from tests.support.worker_lab import ROOT, Lab, open_lab

VICTIMS = ("worker", "web", "shim", "agent", "rank 0", "rank 1")
DEEDS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
LATEST_SECONDS = 7.0
BIRTH_SECONDS = 60.0
FINAL_SECONDS = 180.0
SETTINGS = {"hang_seconds": 10.0, "stall_seconds": 3.0, "start_seconds": 45.0, "stop_grace_seconds": 3.0}
JOB: dict[str, Any] = {"steps": 100, "step_seconds": 0.05, "meeting": "files", "save_every": 20, "stages": 1}


@dataclass(slots=True, kw_only=True)
class Round:
    """One round: what was done, and what became of the run."""

    number: int
    victim: str
    deed: str
    moment: float
    hit: bool = False
    worked: bool = False
    """Whether the victim still had work to do."""
    begun: bool = False
    """Whether the victim had sent its first event, where it is a rank."""
    run: Run | None = None
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the row of the table."""
        run, verdict = self.run, "holds" if not self.faults else "; ".join(self.faults)
        state = f"{run.state}/{run.reason}" if run else "-"
        rank = (run.failure or {}).get("rank") if run else None
        what = f"{self.deed} {self.victim}" if self.hit else f"({self.deed} {self.victim}: was not there)"
        return f"{self.number:>5}  {what:<34} {self.moment:5.1f} s  {state:<26} {rank!s:<5} {verdict}"


class Service:
    """A web process, restarted when it is gone."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.process = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        """Start the web process."""
        arguments = ["serve", "--no-worker", "--port", str(self._port)]
        with (self._lab.settings.data_dir / "web.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from app.cli.main import main; main()", *arguments],
                cwd=ROOT,
                env=self._lab.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.process


def main() -> int:
    """Run the rounds, print the table, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=47)
    parser.add_argument("--only", type=int, help="repeat this round alone")
    options = parser.parse_args()
    numbers = [options.only] if options.only is not None else list(range(1, options.rounds + 1))
    print(table_head(options.seed, len(numbers)))
    held = 0
    with tempfile.TemporaryDirectory(prefix="ddp-audit-chaos-") as folder, open_lab(Path(folder), **SETTINGS) as lab:
        service = Service(lab)
        lab.worker()
        for number in numbers:
            result = play(lab, service, draw(options.seed, number))
            held += not result.faults
            print(result.line(), flush=True)
        service.process.kill()
        service.process.wait()
    print(f"{held} of {len(numbers)} rounds hold")
    return 0 if held == len(numbers) else 1


def table_head(seed: int, rounds: int) -> str:
    """Return machine, versions, n and the head of the table."""
    columns = f"round  {'deed':<34} {'moment':>7}  {'outcome':<26} rank  judgement"
    return f"{header(f'n = {rounds}, seed {seed}', 'torch')}\n{columns}"


def draw(seed: int, number: int) -> Round:
    """Return what happens in a round; the same for the same seed and number."""
    rng = random.Random(f"{seed}:{number}")
    return Round(
        number=number,
        victim=rng.choice(VICTIMS),
        deed=rng.choice(sorted(DEEDS)),
        moment=rng.uniform(0.2, LATEST_SECONDS),
    )


def play(lab: Lab, service: Service, this: Round) -> Round:
    """Carry one round out and judge it."""
    run_id = lab.submit(**JOB)
    lab.until(lambda: find(lab, service, run_id, this.victim), f"birth of {this.victim}", BIRTH_SECONDS)
    time.sleep(this.moment)
    victim = find(lab, service, run_id, this.victim)
    state = lab.run(run_id).state
    if victim is not None:
        this.begun = this.victim.startswith("rank") and last_event(lab, run_id, this.victim) is not None
        this.worked = not State(state).is_final and last_event(lab, run_id, this.victim) != "end"
        this.hit = victim.send(DEEDS[this.deed])
    repair(lab, service, this)
    try:
        this.run = lab.finished(run_id, FINAL_SECONDS)
    except AssertionError as error:  # it has no final state yet
        this.run = lab.run(run_id)
        this.faults.append(str(error).splitlines()[0])
    if this.hit and this.deed == "stop" and victim is not None:
        victim.send(signal.SIGCONT)
    check(lab, this, run_id)
    return this


def find(lab: Lab, service: Service, run_id: int, name: str) -> Identity | None:
    """Return the process of a role as it is now, None when there is none."""
    if name == "web":
        return Identity.of(service.process.pid)
    if name == "worker":
        return Identity.of(lab.workers[-1].pid)
    match: Callable[[Identity], bool]
    if name.startswith("rank"):
        match = lambda item: processes.environment_of(item.pid).get("RANK") == name[-1]  # noqa: E731
    else:
        module = b"worker.executors.local.shim" if name == "shim" else b"trainer.launch"
        match = lambda item: module in command(item.pid)  # noqa: E731
    return next((item for item in lab.processes(run_id) if match(item)), None)


def command(pid: int) -> bytes:
    """Return the command line of a process."""
    try:
        return (processes.PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def last_event(lab: Lab, run_id: int, victim: str) -> str | None:
    """Return the type of the newest event of the victim's rank, of rank 0 for other victims."""
    rank = int(victim[-1]) if victim.startswith("rank") else 0
    path = lab.paths(run_id).attempt("stage-1", 1).events(rank)
    lines = path.read_bytes().splitlines() if path.exists() else []
    return str(json.loads(lines[-1])["type"]) if lines else None


def repair(lab: Lab, service: Service, this: Round) -> None:
    """Start again what a person would: a worker or web process that is gone or stopped."""
    if not this.hit:
        return
    if this.victim == "worker":
        if this.deed == "kill":
            lab.workers[-1].wait()
        lab.worker()
    elif this.victim == "web" and this.deed == "kill":
        service.process.wait()
        service.start()


def check(lab: Lab, this: Round, run_id: int) -> None:
    """Note every way in which the run lied."""
    run = lab.run(run_id)
    if (run.state, run.reason) not in allowed(this):
        this.faults.append(f"{run.state}/{run.reason} is not the truth: {run.diagnosis[:200]}")
    if (
        this.victim.startswith("rank")
        and run.state == "failed"
        and (run.failure or {}).get("rank") != int(this.victim[-1])
    ):
        this.faults.append(f"the wrong rank is named: {run.diagnosis[:200]}")
    try:
        lab.assert_events_complete(run_id)
    except AssertionError as error:
        this.faults.append(f"events: {str(error).splitlines()[0]}")
    left = lab.processes(run_id)
    if left:
        this.faults.append(f"{len(left)} processes are left")
    if run.gpus or run.lease_until is not None:
        this.faults.append("devices are still held")


def allowed(this: Round) -> set[tuple[str, str | None]]:
    """Return the outcomes that tell the truth about what was done."""
    good: tuple[str, str | None] = ("succeeded", "completed")
    if not this.hit or this.victim in {"worker", "web"} or (this.victim == "shim" and this.deed == "stop"):
        return {good}
    table: dict[tuple[str, str], set[tuple[str, str | None]]] = {
        ("shim", "kill"): {("lost", "worker_lost")},
        ("agent", "kill"): {("failed", "launch_error")},
        # Stopped before it has started the ranks, it never will; afterwards they do their work without it.
        ("agent", "stop"): {good, ("failed", "launch_error")},
        ("rank", "kill"): {("failed", "rank_signal")},
        ("rank", "stop"): {("failed", "hang" if this.begun else "launch_error")},
    }
    truths = table[this.victim.split()[0], this.deed]
    # A victim whose work was done, or was done by the time the deed took effect, changes nothing.
    return truths if this.worked else truths | {good}


if __name__ == "__main__":
    sys.exit(main())
