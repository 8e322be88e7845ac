"""Progress of a run on standard error: a bar per stage on a terminal, a line per change elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from app.cli.output import note, shown


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


class Lines:
    """Says every change of the run's or a stage's state once."""

    def __init__(self) -> None:
        self._said: set[tuple[Any, ...]] = set()

    def update(self, run: dict[str, Any]) -> None:
        """Take note of a document."""
        waits = f": {run['queue']['why']}" if run["queue"] else ""
        self._say(("run", run["state"]), f"run {run['id']} {run['state']}{waits}")
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
        self._tasks: dict[tuple[str, int], Any] = {}

    def update(self, run: dict[str, Any]) -> None:
        """Take note of a document."""
        for stage in run["stages"]:
            key = (stage["name"], stage["attempt"])
            if not stage["attempt"]:
                continue
            if key not in self._tasks:
                self._tasks[key] = self._bars.add_task("", total=None)
            text = shown(f"{stage['name']} {stage['state']}")
            done, total = stage["progress"]["done"], stage["progress"]["total"]
            self._bars.update(self._tasks[key], description=text, completed=int(done), total=total and int(total))
