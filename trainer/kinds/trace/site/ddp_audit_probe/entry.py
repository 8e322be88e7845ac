"""Puts the probe into a process: waits for torch, wraps what it watches, and says what it saw when the process ends."""

from __future__ import annotations

import atexit
import functools
import importlib.abc
import importlib.util
import json
import os
import sys
import time
import traceback
from typing import Any

from .core import Core
from .group import Group
from .loaders import Loaders
from .losses import Losses
from .models import Models
from .scaling import Scaling
from .schedules import Schedules
from .steps import Steps
from .writes import Writes

FOLDER = "DDP_AUDIT_TRACE"
"""Environment variable: where the ranks write."""
MOST_TEXT, MOST_TRACEBACK = 2000, 16_000
"""Characters of an exception that are kept."""
OPTIONS = "DDP_AUDIT_TRACE_OPTIONS"
"""Environment variable: how they look, as JSON."""


SETTLE_SECONDS = 0.05
"""Pause at the end of a rank with gloo. Its threads release the last reduction a moment after they have completed it,
and a process that ends meanwhile is aborted (torch 2.14, traced or not)."""


class Probe:
    """Everything that is watched in one process."""

    def __init__(self, folder: str, options: Any) -> None:
        self.core = Core(folder, options)
        self.steps: Steps | None = None
        self.loaders: Loaders | None = None
        self._ended = False

    def attach(self, torch: Any) -> None:
        """Watch a torch that has just been imported."""
        core = self.core
        core.torch = torch
        models = Models(core)
        self.steps = Steps(core, models)
        self.loaders = Loaders(core, self.epoch_ended)
        parts: dict[str, Any] = {
            "group": Group(core, self.end),
            "models": models,
            "losses": Losses(core),
            "steps": self.steps,
            "scaling": Scaling(core, self.steps),
            "schedules": Schedules(core),
            "loaders": self.loaders,
            "writes": Writes(core),
        }
        for name, part in parts.items():
            core.guard.run(name, part.install)
        atexit.register(self.end)
        self._hook, sys.excepthook = sys.excepthook, self._uncaught

    def _uncaught(self, kind: Any, error: Any, trace: Any) -> None:
        """Note an exception that ends the script, then let whoever was asked to show it do so."""
        if self.core.is_rank and not self._ended:
            self.core.guard.run("end", self._failed, kind, error, trace)
        self._hook(kind, error, trace)

    def _failed(self, kind: Any, error: Any, trace: Any) -> None:
        core = self.core
        self._ended = True  # the exit that follows is not the end of the work
        lines = traceback.format_exception(kind, error, trace)
        text = "".join(traceback.format_exception_only(kind, error)).strip()
        if core.files is not None:
            core.files.failed(kind.__name__, text[-MOST_TEXT:], "".join(lines)[-MOST_TRACEBACK:])
        core.totals(last=True)

    def epoch_ended(self) -> None:
        """Look at the newest window of every optimizer: it was the last of its epoch."""
        for number, book in self.core.books.items():
            newest = book.at_epoch_end()
            if newest is not None:
                step, window, at = newest
                self.core.closed(number, step, window, at, why="epoch end")

    def end(self) -> None:
        """Write the last words; called when the group goes, and at the latest when the process does."""
        core = self.core
        if self._ended or not core.is_rank:
            return
        self._ended = True
        core.guard.run("steps", self.epoch_ended)
        if self.loaders is not None:
            core.guard.run("loaders", self.loaders.finish)
        if self.steps is not None:
            steps = max((book.steps for book in core.books.values()), default=0)
            core.guard.run("digests", functools.partial(self.steps.equality.compare, steps, last=True))
        core.guard.run("end", lambda: core.totals(last=True))
        if core.files is not None:
            core.mark("end")
            core.guard.run("end", functools.partial(core.files.event, "end", always=True))
        if "gloo" in core.backend:
            time.sleep(SETTLE_SECONDS)


class _Watch(importlib.abc.MetaPathFinder):
    """Waits for the import of torch as a whole; while it imports its own parts, it is half initialised."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._busy = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        """Return torch's own spec with a loader that tells when it is done."""
        if name != "torch" or self._busy:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self._probe, self)
        return spec


class _Telling(importlib.abc.Loader):
    """A loader that tells the probe once the module is there."""

    def __init__(self, loader: Any, probe: Probe, watch: _Watch) -> None:
        self._loader, self._probe, self._watch = loader, probe, watch

    def create_module(self, spec: Any) -> Any:
        """Create the module as its own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Run the module, then tell."""
        self._loader.exec_module(module)
        if self._watch in sys.meta_path:
            sys.meta_path.remove(self._watch)
        module.__spec__.loader = module.__loader__ = self._loader
        self._probe.core.guard.run("attach", self._probe.attach, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def install() -> Probe | None:
    """Watch this process if it is traced; called before the script begins."""
    folder = os.environ.get(FOLDER)
    if not folder or "torch" in sys.modules:
        return None
    try:
        options = json.loads(os.environ.get(OPTIONS) or "{}")
        probe = Probe(folder, options if isinstance(options, dict) else {})
        sys.meta_path.insert(0, _Watch(probe))
    except Exception as error:  # the script continues untraced
        sys.stderr.write(f"ddp-audit: this process is not traced: {error}\n")
        return None
    return probe
