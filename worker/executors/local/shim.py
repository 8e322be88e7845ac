"""The supervisor of one attempt, run as a module with its plan: outlives the worker, ends every process, reports how.

Runs in its own session and adopts orphans (child subreaper), so no descendant escapes it, even in another session.
SIGTERM is passed on once; from then on, or from the first failed rank, a single deadline runs, after which every
descendant gets SIGKILL. Standard library only: it must start fast and need nothing but the files of its attempt.
Exit codes: 0 exit.json was written; 73 its folder is gone; 74 it could not be written (disk full); 75 another shim owns
this attempt.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from app.host import processes
from app.host.processes import Identity
from trainer.contract.files import make_folder, write_json_atomically
from trainer.contract.paths import AttemptPaths
from worker.executors.local.main_process import Main, start_main
from worker.executors.local.memory import oom_kills
from worker.executors.local.program import FoundRanks, Program
from worker.executors.local.ranks import Ranks
from worker.marker import MARKER

EXIT_GONE: Final = 73
EXIT_CANNOT_WRITE: Final = 74
EXIT_TAKEN: Final = 75
PR_SET_CHILD_SUBREAPER: Final = 36  # from linux/prctl.h
LONGEST_AFTER_DEATH: Final = 10.0
"""Maximum seconds the other ranks and the launcher get after a rank failed, whatever the grace period for a stop."""
LEFTOVER_SECONDS: Final = 1.0
"""Seconds that helpers of a successful process get to end."""
TICK: Final = 0.1
RESERVE_BYTES: Final = 65_536
"""Reserved so that exit.json can be written even if the disk becomes full."""


class Shim:
    """One attempt from its start to its last process."""

    patience: float = 5 * TICK
    """Seconds between two looks while nothing happens."""

    def __init__(self, plan: dict[str, Any], paths: AttemptPaths) -> None:
        self.plan, self.paths = plan, paths
        self.users = plan["launcher"] == "command"
        """A program of the user's ends its own ranks as it sees fit, and may leave helpers behind."""
        self.ranks = FoundRanks(paths, plan["marker"]) if self.users else Ranks(paths, expected=int(plan["ranks"]))
        self.program: Program | None = None
        self.interrupted = False
        """Whether the terminal sent INT to everything in it, the program included."""
        self.main: Main | None = None
        self.main_ended_at: float | None = None
        self.launch_error: str | None = None
        self.term_asked = False
        self.cause: str | None = None
        """Why processes are being ended: term, rank_death or main_gone."""
        self.deadline: float | None = None
        self.killed_at: float | None = None
        self.ended: set[Identity] = set()
        """Processes that were alive when the stop began, or were found during it."""

    def run(self) -> int:
        """Supervise the attempt and return the exit code."""
        self._prepare()
        if not self._take():
            return EXIT_TAKEN
        started_at, oom_before = time.time(), oom_kills()
        try:
            self._reserve().write_bytes(b"\0" * RESERVE_BYTES)
            self._start()
        except OSError as error:
            self.launch_error = f"{type(error).__name__}: {error}"
        while self._step():
            pass
        return self._report(started_at, oom_kills() - oom_before)

    def _prepare(self) -> None:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._wake, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, self._on_int)
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, lambda *_: None)  # a handler, not SIG_IGN, which would be inherited
        signal.signal(signal.SIGWINCH, self._on_resize)

    def _on_term(self, *_: Any) -> None:
        self.term_asked = True

    def _on_int(self, *_: Any) -> None:
        self.interrupted = True

    def _on_resize(self, *_: Any) -> None:
        if self.program is not None:
            self.program.resize()

    def _take(self) -> bool:
        """Write shim.json unless another shim has: two workers that both start the attempt cannot run it twice."""
        me = Identity.of(os.getpid())
        if me is None:
            return False
        aside = self.paths.shim.with_name(f".shim.{me.pid}")
        write_json_atomically(aside, {**me.document(), "marker": self.plan["marker"]})
        try:
            self.paths.shim.hardlink_to(aside)
        except FileExistsError:
            return False
        finally:
            aside.unlink()
        return True

    def _reserve(self) -> Path:
        return self.paths.exit.with_name(".exit.reserve")

    def _start(self) -> None:
        if self.users:
            self.program = Program(self.plan, self.paths)
            self.main = self.program.main
            return
        alone = self.plan["launcher"] == "python"
        if alone:
            make_folder(self.paths.log(0, "stdout").parent, within=self.paths.run)
        self.main = start_main(
            [str(word) for word in self.plan["argv"]],
            cwd=str(self.plan["cwd"]),
            out=str(self.paths.log(0, "stdout")) if alone else None,
            err=str(self.paths.log(0, "stderr")) if alone else None,
        )
        if alone:
            self.ranks.add(self.main.pid, rank=0, local_rank=0)

    def _step(self) -> bool:
        """Wait for an event and handle it; return False once nothing is left to supervise."""
        if self.main is None:
            return False
        if self.main.returncode is None:
            self.ranks.look(self.main.pid)
        self._wait()
        self.ranks.note_deaths()
        self._reap()
        if self.term_asked and self.cause is None:
            self._begin("term", float(self.plan["grace_seconds"]))
            # A program that the terminal interrupted is about to end in its own way; it has the grace to do so.
            if self.main.returncode is None and not self.interrupted:
                self.main.terminate()
        if not self.users:
            self._judge()
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self._kill()
        if self.main.returncode is not None and self.users and self.cause is None:
            return False
        return self.main.returncode is None or bool(self._descendants())

    def _wait(self) -> None:
        timeout = TICK if self.cause or not self.ranks.complete or self.ranks.any_dead else self.patience
        ready, _, _ = select.select([self._wake, *self.ranks.descriptors()], [], [], timeout)
        if self._wake in ready:
            os.read(self._wake, 512)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.ranks.note_status(pid, status)
            if self.main is not None and pid == self.main.pid:
                self.main.returncode = os.waitstatus_to_exitcode(status)
                self.main_ended_at = time.time()

    def _judge(self) -> None:
        """Start the deadline if the attempt can no longer succeed by itself."""
        grace = min(float(self.plan["grace_seconds"]), LONGEST_AFTER_DEATH)
        if self.main is not None and self.main.returncode is not None:
            if self.cause != "main_gone":
                well = self.main.returncode == 0
                self._begin("main_gone", LEFTOVER_SECONDS if well else 0.0)
        elif self.cause is None and self.ranks.any_dead:
            if self.ranks.any_failed or self.ranks.all_dead:
                self._begin("rank_death", grace)
            elif self.ranks.others_wait_in_vain(grace):
                self._begin("rank_death", 0.0)

    def _begin(self, cause: str, grace: float) -> None:
        if self.cause is None:
            self.cause = cause
        self.ended.update(self._descendants())
        deadline = time.monotonic() + grace
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)

    def _kill(self) -> None:
        found = self._descendants()
        if found and self.killed_at is None:
            self.killed_at = time.time()
        self.ended.update(found)
        processes.kill_all(found)

    def _descendants(self) -> list[Identity]:
        boot = processes.boot_id()
        return [Identity(pid=found.pid, start=found.start, boot=boot) for found in processes.children(os.getpid())]

    def _left(self) -> list[Identity]:
        """Return the processes of the attempt that could not be ended."""
        return [item for item in processes.carrying(MARKER, self.plan["marker"]) if item.pid != os.getpid()]

    def _report(self, started_at: float, oom_seen: int) -> int:
        if self.program is not None:
            self.program.finish()
        self._reserve().unlink(missing_ok=True)
        left = self._left()
        code = self.main.returncode if self.main is not None else None
        document = {
            "schema_version": 1,
            "marker": self.plan["marker"],
            "started_at": started_at,
            "finished_at": time.time(),
            "main": {
                "pid": self.main.pid if self.main is not None else None,
                "exit_code": code if code is not None and code >= 0 else None,
                "signal": -code if code is not None and code < 0 else None,
                "ended_at": self.main_ended_at,
            },
            **self.ranks.report(),
            "launch_error": self.launch_error or self.ranks.launcher_error,
            "stop": {
                "cause": self.cause if self.ended or self.term_asked else None,
                "asked": self.term_asked,
                "killed_at": self.killed_at,
                "processes_ended": len(self.ended),
                "processes_left": len(left),
            },
            "oom_kills": oom_seen,
        }
        try:
            write_json_atomically(self.paths.exit, document)
        except OSError as error:
            return _failed("exit.json cannot be written", error)
        return 0


def main() -> int:
    """Supervise the attempt whose `plan.json` is named on the command line."""
    plan_path = Path(sys.argv[1])
    try:
        return Shim(json.loads(plan_path.read_text()), AttemptPaths(plan_path.parent)).run()
    except OSError as error:
        return _failed("the supervisor cannot write its files", error)


def _failed(what: str, error: OSError) -> int:
    sys.stderr.write(f"{what}: {error}\n")
    return EXIT_GONE if isinstance(error, FileNotFoundError) else EXIT_CANNOT_WRITE


if __name__ == "__main__":
    sys.exit(main())
