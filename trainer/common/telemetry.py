"""Telemetry of one rank: event lines for the log, a breadcrumb for the post-mortem."""

import os
import socket
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from trainer.contract.crumb import CrumbWriter
from trainer.contract.events import EventWriter
from trainer.contract.files import make_folder
from trainer.contract.paths import AttemptPaths


class Telemetry:
    """Events and breadcrumb of one rank of one attempt. Raises FileNotFoundError if the run's folder is gone."""

    def __init__(self, paths: AttemptPaths, rank: int) -> None:
        make_folder(paths.root, within=paths.run)
        self._events = EventWriter(paths.events(rank))
        self.crumb = CrumbWriter(paths.breadcrumb(rank))

    def start(self, *, device: str, backend: str, world_size: int, versions: Mapping[str, str]) -> None:
        """Report the identity of this rank; the first event of every file."""
        self._events.write(
            "start",
            pid=os.getpid(),
            host=socket.gethostname(),
            node=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            device=device,
            backend=backend,
            world_size=world_size,
            versions=dict(versions),
        )

    def phase(self, phase: str, step: int | None = None) -> None:
        """Enter a named phase after `step` updates; this writes an event, so do not call it for every micro-batch."""
        self.mark(phase, step)
        self._events.write("phase", phase=phase, step=self.crumb.step)

    def mark(self, phase: str, step: int | None = None) -> None:
        """Update only the breadcrumb: cheap enough for forward, backward and save of every micro-batch."""
        self.crumb.phase = phase
        if step is not None:
            self.crumb.step = step
        self.crumb.flush()

    @contextmanager
    def collective(self, operation: str) -> Iterator[None]:
        """Wrap one collective, so that a hang can be located."""
        self.crumb.enter(operation)
        yield
        self.crumb.leave()  # not in a finally: an interrupted collective was never left

    def progress(self, done: int, total: int, unit: str) -> None:
        """Report `done` of `total` units."""
        self._events.write("progress", done=done, total=total, unit=unit)

    def metrics(self, step: int, values: Mapping[str, float | None]) -> None:
        """Report named numbers after `step` updates."""
        self._events.write("metrics", step=step, values=dict(values))

    def sync(self, step: int, count: int, size: int) -> None:
        """Report `count` completed gradient reductions of the whole model, `size` bytes in all, in update `step`."""
        self._events.write("sync", step=step, count=count, bytes=size)

    def checkpoint(self, step: int, path: str) -> None:
        """Report a complete checkpoint, its path relative to the run's folder."""
        self._events.write("checkpoint", step=step, path=path)

    def message(self, text: str, level: str = "info") -> None:
        """Write a message for users."""
        self._events.write("message", level=level, text=text)

    def error(self, error: BaseException) -> None:
        """Report the exception that ends this rank, with the position at which it happened."""
        self._events.write(
            "error",
            error=type(error).__name__,
            text=str(error),
            phase=self.crumb.phase,
            step=self.crumb.step,
            traceback="".join(traceback.format_exception(error)),
        )

    def end(self) -> None:
        """Report that this rank finished its work; the last event of a complete file."""
        self.mark("end")
        self._events.write("end")
