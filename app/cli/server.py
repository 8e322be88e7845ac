"""Running web and worker until a signal: streams end at once, jobs continue, a second Ctrl-C exits without waiting."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import structlog
import uvicorn

from app.main import create_app, stop_streams
from app.places import module_argv, module_environment
from app.settings import Settings

GRACE_SECONDS: Final = 3
"""Grace period after a signal for requests that are still being answered."""
WORKER_SECONDS: Final = 4.0
"""Grace period after a signal for the worker; its jobs are not its children and keep running."""
INTERRUPTED: Final = 130
UNABLE: Final = 3

log = structlog.get_logger(__name__)


class Server(uvicorn.Server):
    """A server that closes its streams when it receives a stop signal."""

    def __init__(self, config: uvicorn.Config, worker: "WorkerProcess | None") -> None:
        super().__init__(config)
        self._worker = worker
        self.stopped_by: int | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # the signature of signal handlers
        """Stop gracefully; a second signal exits at once."""
        if self.should_exit:
            if self._worker is not None:
                self._worker.terminate()
            os._exit(INTERRUPTED)
        self.should_exit = True
        self.stopped_by = sig
        stop_streams(self.config.app)  # type: ignore[arg-type]
        if self._worker is not None:
            self._worker.terminate()


class WorkerProcess:
    """The service's worker, in its own session so that Ctrl-C reaches it only through the service."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = threading.Event()
        self._process = self._start()
        threading.Thread(target=self._keep_alive, name="worker-keeper", daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        settings = self._settings
        places = {"DATA_DIR": settings.data_dir, "RUNS_DIR": settings.runs_dir, "DATABASE_URL": settings.database_url}
        environment = os.environ | {f"DDP_AUDIT_{name}": str(value) for name, value in places.items()}
        argv = module_argv("app.cli.main", "worker")
        return subprocess.Popen(argv, env=module_environment(environment), start_new_session=True)

    def _keep_alive(self) -> None:
        pause = 1.0
        while True:
            started = time.monotonic()
            code = self._process.wait()
            if self._stopping.is_set():
                return
            log.warning("the worker ended; starting another", action="worker-restart", code=code, pause=pause)
            if self._stopping.wait(pause):
                return
            pause = min(30.0, pause * 2) if time.monotonic() - started < 60 else 1.0
            self._process = self._start()

    def terminate(self) -> None:
        """Ask the worker to stop."""
        self._stopping.set()
        if self._process.poll() is None:
            self._process.terminate()

    def finish(self, seconds: float) -> None:
        """Wait for the worker to stop, and kill it after the grace period."""
        self.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(settings: Settings, *, with_worker: bool) -> int:
    """Serve until a signal and return the exit code: 0 after SIGTERM, 130 after Ctrl-C, 3 if the port is taken."""
    listener = listen(settings.host, settings.port)
    if listener is None:
        return UNABLE
    host, port = listener.getsockname()[:2]
    worker = WorkerProcess(settings) if with_worker else None
    server = Server(_config(settings), worker)
    shown = f"[{host}]" if ":" in host else host
    sys.stderr.write(f"ddp-audit keeps its data in {settings.data_dir}\n")
    sys.stderr.write(f"ddp-audit serves http://{shown}:{port}{settings.root_path}/ (press Ctrl-C to stop)\n")
    sys.stderr.flush()
    try:
        # At its end uvicorn restores the signal handlers and raises the caught signal again, which must then be
        # ignored.
        _on_signals(lambda _number, _frame: None)
        server.run(sockets=[listener])
        _on_signals(lambda _number, _frame: os._exit(INTERRUPTED))
    finally:
        if worker is not None:
            worker.finish(WORKER_SECONDS)
    return 0 if server.stopped_by == signal.SIGTERM else INTERRUPTED


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _config(settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(settings),
        log_level="warning",
        access_log=False,
        log_config=None,  # `app.logs` formats uvicorn's lines
        proxy_headers=False,  # `create_app` trusts those of DDP_AUDIT_TRUSTED_PROXIES only
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


def listen(host: str, port: int) -> socket.socket | None:
    """Return a listening socket, or None after printing the reason."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        sys.stderr.write(
            f"ddp-audit cannot listen on {host} port {port}: {error.strerror}; --port 0 picks a free one\n"
        )
        return None
    listener.set_inheritable(True)
    return listener
