"""A SIGTERM from outside as a flag the training loop can act on, even while the main thread waits in a collective."""

import os
import signal
import socket
import sys
import threading
from types import TracebackType
from typing import Self

PATIENCE_SECONDS = 3.0
"""A rank gives up waiting for the others after this long; they may be dead."""


class PreemptionFlag:
    """Context manager that turns SIGTERM into `requested`.

    Python runs a signal handler only between bytecodes of the main thread, which a rank inside a collective does not
    reach. The wake-up descriptor is written by the C handler at once, so a thread of ours sees the signal in any case:
    it sets the flag, and unless `acknowledge` is called within `patience` seconds it ends the process with 143.
    """

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self.patience = patience
        self._requested = threading.Event()
        self._acknowledged = threading.Event()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)

    @property
    def requested(self) -> bool:
        """Whether a SIGTERM has arrived at this rank."""
        return self._requested.is_set()

    def acknowledge(self) -> None:
        """Say that the loop has seen the request and is about to end by itself; nobody kills it any more."""
        self._acknowledged.set()

    def __enter__(self) -> Self:
        self._old_handler = signal.signal(signal.SIGTERM, lambda *_: None)
        self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="preemption", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.acknowledge()
        signal.set_wakeup_fd(self._old_fd)
        signal.signal(signal.SIGTERM, self._old_handler)
        self._writer.close()

    def _watch(self) -> None:
        with self._reader:
            while data := self._reader.recv(64):
                if signal.SIGTERM in data:
                    self._requested.set()
                    break
            else:
                return
        if not self._acknowledged.wait(self.patience):
            print(f"SIGTERM: gave up after {self.patience:g} s, the other ranks do not answer", file=sys.stderr)  # noqa: T201
            sys.stderr.flush()
            os._exit(128 + signal.SIGTERM)
