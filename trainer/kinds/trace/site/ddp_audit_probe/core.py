"""The state of the probe in one process: what is known so far, and where it is written once this is a rank."""

from __future__ import annotations

import os
import time
import weakref
from typing import Any

from . import places
from .files import Files, Waiting, hand_over
from .guard import Guard
from .windows import Book, Cell, Window

EVENT_SECONDS, EVENT_SHARE = 0.5, 1 / 20_000
"""At most one progress event in this time, or in this share of the time since the start: some 60,000 in a day."""
TOTALS_SECONDS, TOTALS_SHARE = 2.0, 1 / 200
"""At most one record of totals in this time, or in this share of the time since the start: some 1,300 in a day."""
MOST_SITES = 4096


class Core:
    """One process; a rank from `became_rank` on."""

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        self.folder, self.options = folder, options
        self.guard = Guard()
        self.pid = os.getpid()
        self.waiting = Waiting()
        self.files: Files | None = None
        self.rank = self.world_size = -1
        self.backend = ""
        self.torch: Any = None
        self.models: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.books: dict[int, Book] = {}
        self.optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.cell: Cell | None = None
        """The running backward pass."""
        self.forwarded: set[int] = set()
        """Models whose forward ran since the last backward."""
        self.forward_span: tuple[float, float] | None = None
        self.forward_sync: dict[int, bool] = {}
        self.forwards = 0
        self.rows: int | None = None
        """Samples of the newest forward's input."""
        self.scale: Any = None
        """By which the loss of the next backward was scaled for float16."""
        self.counts: dict[str, int] = {}
        self.unseen: dict[str, int] = {}
        """What happened and could not be inspected -> how often."""
        self._sites: dict[tuple[str, Any], int] = {}
        self._numbers: dict[str, int] = {}
        self._began = time.monotonic()
        self._event_at = self._totals_at = 0.0

    @property
    def is_rank(self) -> bool:
        """Whether this process has joined a group."""
        return self.files is not None and os.getpid() == self.pid

    @property
    def mine(self) -> bool:
        """Whether this is the process that was probed, not one that it forked since."""
        return os.getpid() == self.pid

    def became_rank(self, rank: int, world_size: int, backend: str, device: str, versions: dict[str, str]) -> None:
        """Begin to write; called once, when the process group is there."""
        if self.files is not None or not self.mine:
            return
        self.rank, self.world_size, self.backend = rank, world_size, backend
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        folder = self.folder if restarts in ("", "0") else os.path.join(self.folder, f"restart_{restarts}")
        self.files = Files(folder, rank)
        self.files.start(device, backend, world_size, versions)
        hand_over(self.waiting, self.files)

    def record(self, kind: str, **fields: Any) -> None:
        """Write a record, or keep it until this is a rank."""
        if self.files is not None:
            if self.mine:
                self.files.record(kind, **fields)
        else:
            self.waiting.record(kind, **fields)

    def number(self, what: str) -> int:
        """Return the next number of something: 0, 1, 2 …"""
        found = self._numbers.get(what, 0)
        self._numbers[what] = found + 1
        return found

    def count(self, what: str, by: int = 1) -> None:
        """Count something for the totals."""
        self.counts[what] = self.counts.get(what, 0) + by

    def miss(self, what: str) -> None:
        """Count something that could not be looked into."""
        self.unseen[what] = self.unseen.get(what, 0) + 1

    def site(self, function: str, skip: int = 2) -> int:
        """Return the number of the user's line that calls `function`, writing it down when it is new; -1 for none."""
        place = places.place(skip + 1)
        key = (function, place)
        found = self._sites.get(key)
        if found is None:
            if len(self._sites) >= MOST_SITES:
                return -1
            found = self._sites[key] = len(self._sites)
            self.record("site", site=found, function=function, place=place, outline=places.outline(skip + 1))
        return found

    def book(self, number: int) -> Book:
        """Return the windows of an optimizer."""
        if number not in self.books:
            self.books[number] = Book(number, int(self.options.get("windows", 20)))
        return self.books[number]

    def mark(self, phase: str) -> None:
        """Move the breadcrumb."""
        if self.files is not None and self.mine:
            self.files.crumb.at(phase)

    def step(self, step: int, values: dict[str, Any]) -> None:
        """Note that an update is done; now and then this is an event."""
        files = self.files
        if files is None or not self.mine:
            return
        files.crumb.step = step
        files.crumb.at("step")
        moment = time.monotonic()
        elapsed = moment - self._began
        if step <= 3 or moment - self._event_at >= max(EVENT_SECONDS, EVENT_SHARE * elapsed):
            self._event_at = moment
            files.event("phase", phase="train", step=step)
            if values:
                files.event("metrics", step=step, values=values)
        if moment - self._totals_at >= max(TOTALS_SECONDS, TOTALS_SHARE * elapsed):
            self.totals()

    def totals(self, *, last: bool = False) -> None:
        """Record the counts so far; the newest such record counts."""
        if self.files is None or not self.mine:
            return
        self._totals_at = time.monotonic()
        self.files.record(
            "totals",
            always=last,
            last=last,
            t=time.time(),
            optimizers={
                str(number): {
                    "steps": book.steps,
                    "skipped": book.skipped,
                    "open_cells": len(book.window.cells),
                    "patterns": [[*key, *value] for key, value in book.patterns.items()],
                }
                for number, book in self.books.items()
            },
            counts=self.counts,
            unseen=self.unseen,
            probe_seconds=self.guard.seconds,
            off=self.guard.off,
            dropped=self.files.dropped,
        )

    def closed(self, number: int, step: int, window: Window, at: list[float], *, why: str) -> None:
        """Write a window that is looked at."""
        self.record(
            "window",
            optimizer=number,
            step=step,
            why=why,
            t=[window.begin, at[1]],
            step_at=at,
            micro_batches=len(window.cells) + window.overflow,
            clip=window.clip,
            cells=[cell.read(self._model_of(cell, number)) for cell in window.cells],
            scales=[None if cell.scale is None else _scale(cell.scale) for cell in window.cells],
        )

    def _model_of(self, cell: Cell, _number: int) -> int:
        return cell.models[-1] if len(cell.models) == 1 else -1


def _scale(value: Any) -> float:
    return float(value.item() if hasattr(value, "item") else value)
