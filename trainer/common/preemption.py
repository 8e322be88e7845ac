"""Turns an external SIGTERM into a flag for the training loop, even while the main thread waits in a collective."""

import os
import signal
import socket
import sys
import threading
import time
from types import TracebackType
from typing import Self

PATIENCE_SECONDS = 3.0
"""A rank stops waiting for the others after this time; they may be dead."""
PATIENCE_TURNS = 2.0
"""If updates take long, it waits for this many times the longest update instead."""


class PreemptionFlag:
    """Context manager that turns SIGTERM into `requested`.

    Python runs a signal handler only between bytecodes of the main thread, which a rank inside a collective does not
    reach. The C handler writes to the wake-up descriptor immediately, so our thread always sees the signal. It sets the
    flag, and unless `acknowledge` is called within `patience` seconds it ends the process with 143.
    """

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self.patience = patience
        self._turned_at: float | None = None
        self._requested = threading.Event()
        self._acknowledged = threading.Event()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)

    @property
    def requested(self) -> bool:
        """Whether a SIGTERM has arrived at this rank."""
        return self._requested.is_set()

    def turned(self) -> None:
        """Record that the loop has finished an iteration; a loop with long iterations gets more patience.

        A request is handled only at the end of an iteration, so a rank in the middle of a long one is not stuck.
        """
        now, before = time.monotonic(), self._turned_at
        self._turned_at = now
        if before is not None:
            self.patience = max(self.patience, PATIENCE_TURNS * (now - before))

    def acknowledge(self) -> None:
        """Record that the loop has seen the request and is about to end by itself; it is not killed any more."""
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
        began = time.monotonic()
        # Read again after each wait: the current iteration may have ended as the longest so far.
        while (left := began + self.patience - time.monotonic()) > 0:
            if self._acknowledged.wait(left):
                return
        if not self._acknowledged.is_set():
            print(f"SIGTERM: gave up after {self.patience:g} s, the other ranks do not respond", file=sys.stderr)  # noqa: T201
            sys.stderr.flush()
            os._exit(128 + signal.SIGTERM)
