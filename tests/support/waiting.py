"""Other threads and processes: waiting for what they do, given up loudly; and having one do something meanwhile."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 60.0
"""Seconds after which something that should happen counts as not happening; no measurement of how long it takes."""
AGAIN_SECONDS = 0.02


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Return the first true value of `condition`. Fails, naming `what`, when there is none within `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(AGAIN_SECONDS)
    return found


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Do `work` over and over in another thread."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
