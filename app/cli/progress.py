"""Progress of a run on standard error: a bar per stage on a terminal, a line per change elsewhere."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from app.cli.output import note, shown

STAYED: Final = 6
"""Consecutive documents, a third of a second apart, after which a reason to wait is reported."""


@contextmanager
def progress() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that is given every new document of the run."""
    if not sys.stderr.isatty():
        yield Lines().update
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bars:
        yield Bars(bars).update


class Waits:
    """Reports only lasting reasons to wait, not one that disappears a moment later, such as before a worker reports."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def told(self, run: dict[str, Any]) -> str:
        """Return why the run waits, once for every reason; else nothing."""
        if not run["queue"]:
            return ""
        why = run["queue"]["why"]
        self._seen[why] += 1
        return f"run {run['id']} waits: {why}" if self._seen[why] == STAYED else ""


class Lines:
    """Prints every state change of the run and its stages once, and what the run waits for."""

    def __init__(self) -> None:
        self._said: set[tuple[Any, ...]] = set()
        self._waits = Waits()

    def update(self, run: dict[str, Any]) -> None:
        """Process a new document."""
        self._say(("run", run["state"]), f"run {run['id']} {run['state']}")
        if waits := self._waits.told(run):
            note(waits)
        for stage in run["stages"]:
            if stage["attempt"]:
                attempt = "" if stage["attempt"] == 1 else f" (attempt {stage['attempt']})"
                key = (stage["name"], stage["attempt"], stage["state"])
                self._say(key, f"stage {stage['name']}{attempt} {stage['state']}")

    def _say(self, key: tuple[Any, ...], text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            note(text)


class Bars:
    """Draws a bar per stage attempt."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._waits = Waits()
        self._tasks: dict[tuple[str, int], Any] = {}

    def update(self, run: dict[str, Any]) -> None:
        """Process a new document."""
        if waits := self._waits.told(run):
            self._bars.console.print(shown(waits), markup=False, highlight=False)
        for stage in run["stages"]:
            key = (stage["name"], stage["attempt"])
            if not stage["attempt"]:
                continue
            if key not in self._tasks:
                self._tasks[key] = self._bars.add_task("", total=None)
            text = shown(f"{stage['name']} {stage['state']}")
            done, total = stage["progress"]["done"], stage["progress"]["total"]
            self._bars.update(self._tasks[key], description=text, completed=int(done), total=total and int(total))
