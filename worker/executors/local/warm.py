"""Starts programs as forks of the template, or as new interpreters if there is no template."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, Protocol

from app.environment import for_children
from app.host.processes import Identity
from app.places import module_environment
from trainer.contract import forking
from trainer.contract.forking import Job, module_command
from worker.log import log

ANSWER_SECONDS: Final = 10.0
"""A template that does not fork within this time is given up."""
WARM_SECONDS: Final = 120.0
"""A template that does not import torch within this time is given up."""
AGAIN_SECONDS: Final = 300.0
"""Seconds until the next template after a failed one."""
TEMPLATE: Final = "worker.executors.local.template"
UNKNOWN_CODE: Final = 255
THREADS: Final = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONIOENCODING": "utf-8",
    "PYTHONSAFEPATH": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
"""Variables read at interpreter start-up or while torch is imported; all attempts have the same values."""


class Child(Protocol):
    """A process started by this module."""

    pid: int

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it is running or if it is unknown."""

    def kill(self) -> None:
        """Send SIGKILL."""


class Fork:
    """A child of the template."""

    def __init__(self, pid: int, template: "Template") -> None:
        self.pid, self._template = pid, template
        self._identity = Identity.of(pid)

    def poll(self) -> int | None:
        """Return its exit code as reported by the template, `UNKNOWN_CODE` if that is gone; None while it runs."""
        code = self._template.code(self.pid)
        if code is None and self._template.gone and (self._identity is None or not self._identity.alive):
            return UNKNOWN_CODE
        return code

    def kill(self) -> None:
        """Send SIGKILL unless it is known to have ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Template:
    """The worker's side of the socket; blocks only for the reply to a fork request."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self._line, self._read = ours, b""
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._codes: dict[int, int] = {}
        self._began, self.ready, self.complete, self.gone = time.monotonic(), False, False, False
        self._asked = False
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", TEMPLATE, str(theirs.fileno()), forking.room_argument()],
                env={**environment, **THREADS, **forking.room()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The template process."""
        return self._process.pid

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when the template sends something."""
        return self._line.fileno()

    def look(self) -> None:
        """Read the template's messages without blocking."""
        while not self.gone and select.select([self._line], [], [], 0)[0]:
            self._hear()
        late = time.monotonic() - self._began > WARM_SECONDS
        if late and not self.ready:
            self._give_up("it did not import torch in time")

    def fork(self, job: Job) -> Fork:
        """Return a fork that runs `job`. Raises OSError if the template cannot fork or does not respond."""
        self._number += 1
        deadline = time.monotonic() + ANSWER_SECONDS
        try:
            self._line.settimeout(ANSWER_SECONDS)
            self._line.sendall(json.dumps({"number": self._number, "job": asdict(job)}).encode() + b"\n")
        except OSError as error:
            self._give_up(str(error))
        while self._number not in self._answers and not self.gone:
            if not select.select([self._line], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self._give_up("it does not respond")
                break
            self._hear()
        answer = self._answers.pop(self._number, {"error": "the template is gone"})
        if "error" in answer:
            raise OSError(f"no fork: {answer['error']}")
        return Fork(int(answer["pid"]), self)

    def complete_soon(self) -> None:
        """Ask it to import torch's compiler; `complete` tells when that is done."""
        if not self._asked:
            self._asked = True
            try:
                self._line.sendall(b'{"import": "compiler"}\n')
            except OSError as error:
                self._give_up(str(error))

    def code(self, pid: int) -> int | None:
        """Return the exit code of a fork that has ended, None for any other."""
        self.look()
        return self._codes.get(pid)

    def close(self) -> None:
        """End it; its forks continue."""
        self.gone = True
        self._line.close()
        self._process.kill()
        self._process.wait()

    def _hear(self) -> None:
        try:
            data = self._line.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._give_up("it has ended")
            return
        self._read += data
        *lines, self._read = self._read.split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, document: dict[str, Any]) -> None:
        if "ready" in document:
            self.ready = True
            log.info("the template is ready", action="template-ready", seconds=round(time.monotonic() - self._began, 2))
        elif "complete" in document:
            self.complete = True
        elif "ended" in document:
            self._codes[document["ended"]] = document["code"]
        else:
            self._answers[document["number"]] = document

    def _give_up(self, why: str) -> None:
        if not self.gone:
            log.warning("no template: programs are started as new interpreters", action="template-gone", why=why)
        self.gone = True
        self._process.kill()


class Starter:
    """Starts programs in their own sessions, by fork if possible."""

    def __init__(self, environment: Mapping[str, str], *, warm: bool = True) -> None:
        """Take the environment of every program; without `warm` all are started as new interpreters."""
        self.environment = dict(environment)
        self._warm = warm
        self._template: Template | None = None
        self._failed_at: float | None = None

    def warming(self, *, compiler: bool = False) -> bool:
        """Whether waiting a moment makes a fork possible; requests the necessary imports.

        With `compiler` the fork must have imported the compiler in addition to torch.
        """
        template = self._current()
        if template is None:
            return False
        if template.ready and compiler and not template.complete:
            template.complete_soon()
            return not template.gone
        return not template.ready

    def descriptor(self) -> int | None:
        """Return a file descriptor that becomes readable when the template sends something."""
        return None if self._template is None or self._template.gone else self._template.fileno()

    def start(self, argv: list[str], environment: Mapping[str, str], *, cwd: str, out: str) -> Child:
        """Start a command line with output appended to `out`. Raises OSError if it cannot be started at all."""
        environment = {**self.environment, **environment}
        command, template = module_command(argv), self._current()
        if command is not None and template is not None and template.ready:
            module, arguments = command
            job = Job(
                module=module,
                arguments=arguments,
                environment=environment,
                cwd=cwd,
                stdout=out,
                stderr=out,
                new_session=True,
            )
            try:
                return template.fork(job)
            except OSError as error:
                log.warning("fork failed; starting a new interpreter", action="fork-failed", error=str(error))
        with open(out, "ab") as output:  # noqa: PTH123  # `out` may be /dev/null
            return subprocess.Popen(
                argv,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def template_process(self) -> Identity | None:
        """Return the template process, None if there is none."""
        return None if self._template is None else Identity.of(self._template.pid)

    def close(self) -> None:
        """End the template; started programs continue."""
        if self._template is not None:
            self._template.close()
            self._template = None

    def _current(self) -> Template | None:
        if not self._warm:
            return None
        if self._template is not None:
            self._template.look()
            if self._template.gone:
                self._template.close()
                self._template, self._failed_at = None, time.monotonic()
        if self._template is None and self._may_try():
            self._template = Template(self.environment)
        return self._template

    def _may_try(self) -> bool:
        return self._failed_at is None or time.monotonic() - self._failed_at > AGAIN_SECONDS


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for attempts: that of this process without secrets, with this product importable."""
    return module_environment(for_children(environment))
