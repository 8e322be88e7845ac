"""The ranks that torchrun starts, each with its own output files, and how each of them ended.

torchrun reports only failed ranks; ranks that succeeded, or were stopped because another failed, are recorded here.
torchrun starts ranks through `subprocess.Popen`; `install` replaces it with our class before torch binds the name. If
ranks were forked beforehand, a start wakes one of them instead of starting another interpreter.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Final

from trainer.common.process import die_with_parent
from trainer.contract import forking
from trainer.contract.files import make_folder, write_json_atomically
from trainer.contract.forking import Job
from trainer.contract.paths import AttemptPaths

NEEDED: Final = ("TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK")
"""In the environment of every rank that torchrun starts."""
POLL_SECONDS: Final = 0.02


class Waiting:
    """A fork that waits to be assigned a rank; it ends by itself when the launcher is gone."""

    def __init__(self) -> None:
        launcher = os.getpid()
        reader, writer = os.pipe()
        self.pid = forking.fork_blank()
        if self.pid == 0:
            os.close(writer)
            _wait_for_job(reader, launcher)
        os.close(reader)
        self._writer = writer

    def become(self, job: Job) -> None:
        """Turn it into `job`. Raises OSError if it is gone."""
        with os.fdopen(self._writer, "wb") as pipe:
            pipe.write(json.dumps(asdict(job)).encode() + b"\n")

    def dismiss(self) -> None:
        """Let it exit unused."""
        with contextlib.suppress(OSError), os.fdopen(self._writer, "wb") as pipe:
            pipe.write(b"\n")
        os.waitpid(self.pid, 0)


def _wait_for_job(reader: int, launcher: int) -> None:
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        die_with_parent(launcher)
        # Read a line, not until end of file: later forks also hold the write end of this pipe.
        with os.fdopen(reader, "rb") as pipe:
            line = pipe.readline().strip()
        job = Job(**json.loads(line)) if line else None
    except BaseException:  # no code of the launcher may run a second time in the fork
        os._exit(1)
    if job is None:
        os._exit(0)
    forking.become(job)


class RankProcess(subprocess.Popen[bytes]):
    """Replacement for `subprocess.Popen`: a process that torchrun starts as a rank; other processes are unaffected."""

    paths: ClassVar[AttemptPaths]
    started: ClassVar[dict[int, "RankProcess"]] = {}
    """By local rank."""
    waiting: ClassVar[list[Waiting]] = []
    """Forks for the ranks that are started next."""
    forked = False
    ended_at: float | None = None
    """Unix seconds at which the exit was first seen, with a delay of about 0.1 s."""

    def __init__(self, *args: Any, **options: Any) -> None:
        env: Mapping[str, str] = options.get("env") or {}
        if any(name not in env for name in NEEDED):
            super().__init__(*args, **options)
            return
        self.rank, self.local_rank = int(env["RANK"]), int(env["LOCAL_RANK"])
        argv = [str(word) for word in (options["args"] if "args" in options else args[0])]
        out, err = (self.paths.log(self.rank, name) for name in ("stdout", "stderr"))
        make_folder(out.parent, within=self.paths.run)
        command = forking.module_command(argv)
        if self.waiting and command is not None:
            self._wake(command, env, str(out), str(err), new_session=bool(options.get("start_new_session")))
        else:
            with out.open("ab") as stdout, err.open("ab") as stderr:
                super().__init__(*args, **{**options, "stdout": stdout, "stderr": stderr})
        self.started[self.local_rank] = self

    def _wake(
        self, command: tuple[str, tuple[str, ...]], env: Mapping[str, str], out: str, err: str, *, new_session: bool
    ) -> None:
        module, arguments = command
        job = Job(
            module=module,
            arguments=arguments,
            environment=dict(env),
            cwd=str(Path.cwd()),
            stdout=out,
            stderr=err,
            new_session=new_session,
        )
        fork = self.waiting.pop()
        self.forked, self.args, self.pid, self.returncode = True, job.argv, fork.pid, None
        self.stdin = self.stdout = self.stderr = None
        fork.become(job)

    def poll(self) -> int | None:
        """Check for the exit like the base class, and record when it was first seen."""
        return self._noted(self._look() if self.forked else super().poll())

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit like the base class, and record when it was seen."""
        if not self.forked:
            code = super().wait(timeout)
            self._noted(code)
            return code
        deadline = None if timeout is None else time.monotonic() + timeout
        while (found := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(POLL_SECONDS)
        return found

    def _look(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def _noted(self, code: int | None) -> int | None:
        if code is not None and self.ended_at is None:
            self.ended_at = time.time()
            if self in self.started.values():
                # Only this process knows the code, and it may be killed with the ranks that still wait for this one.
                with contextlib.suppress(OSError):
                    self.record()
        return code

    @classmethod
    def record(cls, *, launcher_error: str | None = None, launcher_signal: int | None = None) -> list[dict[str, Any]]:
        """Write how each rank has ended so far, and return it. Raises OSError."""
        ranks = [cls.started[local_rank].report() for local_rank in sorted(cls.started)]
        write_json_atomically(
            cls.paths.ranks_exit,
            {"ranks": ranks, "launcher_error": launcher_error, "launcher_signal": launcher_signal},
            within=cls.paths.run,  # ranks that were never started have left no folder for their logs
        )
        return ranks

    def report(self) -> dict[str, Any]:
        """Return how this rank ended; `exit_code` and `signal` are both null if it is still running."""
        code = self.poll()
        return {
            "rank": self.rank,
            "local_rank": self.local_rank,
            "pid": self.pid,
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "ended_at": self.ended_at,
            "error": self._last_words() if code else None,
        }

    def _last_words(self) -> str | None:
        try:
            return str(json.loads(self.paths.error(self.rank).read_text())["last_line"])
        except (OSError, ValueError, KeyError):
            return last_line(self.paths.log(self.rank, "stderr"))


def install() -> None:
    """Replace `subprocess.Popen` with `RankProcess`; call it before torch is imported."""
    subprocess.Popen = RankProcess  # type: ignore[misc, assignment]


def last_line(path: Path) -> str | None:
    """Return the last non-blank line of a text file, or None; only its last 8 KiB are read."""
    try:
        with path.open("rb") as handle:
            handle.seek(max(0, path.stat().st_size - 8192))
            lines = handle.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.strip() for line in reversed(lines) if line.strip()), None)
