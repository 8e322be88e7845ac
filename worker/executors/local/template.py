"""A process with torch imported that forks itself on request: `python -m worker.executors.local.template FD`.

On the socket FD it reads one JSON document per line, `{"number": n, "job": {…}}`, forks the job in its own session and
replies `{"number": n, "pid": p}`; `{"ended": p, "code": c}` follows when the fork has ended. When it is ready it sends
`{"ready": true}`. On `{"import": "compiler"}`, or when idle for a while, it also imports torch's compiler and sends
`{"complete": true}`. It ends when the other side is gone; its forks continue. It never starts a thread and never uses
a GPU: only then is a fork as good as a new interpreter.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any, Final

from trainer import ranks
from trainer.contract import forking
from trainer.contract.forking import Job

CARRIED: Final = (
    "torch",
    "torch.distributed.run",
    "torch.nn.parallel",
    "trainer.common.checkpoints.store",
    "trainer.common.context",
    "trainer.common.continuation",
    "trainer.common.distributed",
    "trainer.common.evaluation",
    "trainer.common.policy",
    "trainer.common.sync_counter",
    "trainer.common.window",
    "trainer.common.witness",
    "worker.executors.local.main_process",
    "worker.executors.local.memory",
    "worker.executors.local.ranks",
)
"""Modules that launchers and ranks import; ranks import everything else that a kind needs."""


def main() -> int:
    """Serve until the other side is gone, and return 0; in a fork this never returns."""
    line = socket.socket(fileno=int(sys.argv[1]))
    forking.restate([sys.executable, "-m", "worker.executors.local.template"], os.environ)  # without the padding
    ranks.install()  # torch binds the replaced name at import
    for name in CARRIED:
        importlib.import_module(name)
    if not fit_to_fork():
        return 1
    Template(line).serve()
    return 0


def fit_to_fork() -> bool:
    """Return whether this process has one thread and has not used a GPU; writes to stderr if not."""
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208  # only their number is wanted
    if threads == 1 and not sys.modules["torch"].cuda.is_initialized():
        return True
    sys.stderr.write(f"importing torch left {threads} threads or an open GPU: this process cannot be forked\n")
    return False


IDLE_SECONDS: Final = 0.5
"""After this time without a request, it imports torch's compiler."""


class Template:
    """The serving side of the socket."""

    def __init__(self, line: socket.socket) -> None:
        self._line, self._read = line, b""
        self._complete = False
        self._wake, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Handle requests until the other side is gone."""
        self._say(ready=True)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                patience = None if self._complete else IDLE_SECONDS
                ready, _, _ = select.select([self._line.fileno(), self._wake], [], [], patience)
                if not ready and not self._import_compiler():
                    return
                if self._wake in ready:
                    os.read(self._wake, 512)
                    self._reap()
                if self._line.fileno() in ready and not self._hear():
                    return

    def _hear(self) -> bool:
        data = self._line.recv(1 << 16)
        self._read += data
        *lines, self._read = self._read.split(b"\n")
        for line in lines:
            request: dict[str, Any] = json.loads(line)
            if "import" in request:
                if not self._import_compiler():
                    return False
                continue
            try:
                self._say(number=request["number"], pid=forking.fork(Job(**request["job"])))
            except OSError as error:
                self._say(number=request["number"], error=str(error))
        return bool(data)

    def _import_compiler(self) -> bool:
        """Import torch's compiler once, on request of the first stage that needs it or when idle."""
        if not self._complete:
            sys.modules["trainer.common.policy"].import_compiler()
            self._complete = True
            if not fit_to_fork():
                return False
            self._say(complete=True)
        return True

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._say(ended=pid, code=os.waitstatus_to_exitcode(status))

    def _say(self, **document: Any) -> None:
        self._line.sendall(json.dumps(document).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
