"""Two transactions at once on a PostgreSQL server: the first is stopped after a statement while the second runs."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, event, text

LOCKING = re.compile(r" FOR (NO KEY )?UPDATE( SKIP LOCKED)?$|pg_advisory_xact_lock(_shared)?\(")
PATIENCE = 30.0


@dataclass(kw_only=True)
class Ended:
    """How both went."""

    first: Any
    """What it returned, or its exception."""
    second: Any
    waited: bool
    """Whether the second one waited for the first one to end."""


class Race:
    """Runs two functions at once; the engine is theirs alone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def without_locks(self) -> Iterator[None]:
        """Take no lock that a statement asks for: the broken twin."""

        def strip(_c: Any, _cursor: Any, statement: str, parameters: Any, _x: Any, _many: Any) -> tuple[str, Any]:
            return LOCKING.sub(lambda found: "concat(" if "(" in found[0] else "", statement), parameters

        event.listen(self._engine, "before_cursor_execute", strip, retval=True)
        try:
            yield
        finally:
            event.remove(self._engine, "before_cursor_execute", strip)

    def run(self, first: Callable[[], Any], second: Callable[[], Any], *, after: str) -> Ended:
        """Stop `first` after its first statement that matches `after` until `second` has ended or waits for it."""
        reached, go_on = threading.Event(), threading.Event()

        def pause(_c: Any, _cursor: Any, statement: str, _p: Any, _x: Any, _many: Any) -> None:
            if threading.current_thread() is ahead and not reached.is_set() and re.search(after, statement, re.DOTALL):
                reached.set()
                assert go_on.wait(PATIENCE), "the second one neither ended nor waited"

        found: dict[str, Any] = {}
        ahead = threading.Thread(target=_keep, args=(found, "first", first))
        behind = threading.Thread(target=_keep, args=(found, "second", second))
        event.listen(self._engine, "after_cursor_execute", pause)
        try:
            ahead.start()
            assert reached.wait(PATIENCE), f"the first one never ran {after!r}: {found}"
            behind.start()
            waited = self._ended_or_waits(behind)
            go_on.set()
            for thread in (ahead, behind):
                thread.join(PATIENCE)
                assert not thread.is_alive()
        finally:
            go_on.set()
            event.remove(self._engine, "after_cursor_execute", pause)
        return Ended(first=found["first"], second=found["second"], waited=waited)

    def _ended_or_waits(self, thread: threading.Thread) -> bool:
        query = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()")
        until = time.monotonic() + PATIENCE
        while thread.is_alive() and time.monotonic() < until:
            with self._engine.connect() as connection:
                if connection.execute(query).scalar_one():
                    return True
            time.sleep(0.01)
        return False


def _keep(found: dict[str, Any], name: str, function: Callable[[], Any]) -> None:
    try:
        found[name] = function()
    except Exception as error:
        found[name] = error
