"""Nothing the probe does may change the script: a fault switches off one probe and is recorded, nothing else."""

from __future__ import annotations

import functools
import threading
import time
import traceback
from typing import Any, Callable

LONGEST = 2000
"""Characters of a fault's text that are kept."""


class Guard:
    """Runs pieces of the probe, each under a name, and takes the time they cost."""

    def __init__(self) -> None:
        self.off: dict[str, str] = {}
        """Probe -> the fault that switched it off."""
        self.seconds = 0.0
        """Time spent in probes, in the threads that the script waits for."""
        self._inside = threading.local()

    def on(self, name: str) -> bool:
        """Return whether a probe still works."""
        return name not in self.off

    def run(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a piece of a probe and return its answer, None when it failed or the probe is off."""
        if name in self.off:
            return None
        outermost = not getattr(self._inside, "busy", False)
        self._inside.busy = True
        began = time.perf_counter()
        try:
            return function(*arguments)
        except Exception:  # whatever it is, it is the probe's own fault and none of the script's
            self.off[name] = traceback.format_exc()[-LONGEST:]
            return None
        finally:
            if outermost:
                self.seconds += time.perf_counter() - began
                self._inside.busy = False

    def wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` so that it can be handed out as a hook: it never raises, and answers None when it fails."""

        @functools.wraps(function)
        def hook(*arguments: Any, **options: Any) -> Any:
            return self.run(name, functools.partial(function, **options) if options else function, *arguments)

        return hook


def replace(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any | None:
    """Put `make(original)` in the place of a function or method and return the original, None when there is none."""
    original = getattr(owner, name, None)
    if original is None:
        return None
    changed = make(original)
    functools.update_wrapper(changed, original)
    setattr(owner, name, changed)
    return original
