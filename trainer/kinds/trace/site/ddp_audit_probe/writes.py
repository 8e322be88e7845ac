"""Files that are written: two ranks that write the same one overwrite each other."""

from __future__ import annotations

import builtins
import os
from typing import Any, Callable

from .core import Core
from .guard import replace

MOST_PATHS = 2000


class Writes:
    """Watches `open` and `torch.save`."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._seen: dict[str, int] = {}

    def install(self) -> None:
        """Wrap `open` for writing, and torch's own way to save."""
        replace(builtins, "open", self._open)
        replace(self.core.torch, "save", self._save)

    def _open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        core = self.core

        def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            handle = original(file, mode, *arguments, **options)
            if core.files is not None and isinstance(mode, str) and mode[:1] in "wx" and core.mine:
                core.guard.run("writes", self._note, file, "open")
            return handle

        return opened

    def _save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        core = self.core

        def save(value: Any, file: Any, *arguments: Any, **options: Any) -> Any:
            if core.files is not None and core.mine:
                core.guard.run("writes", self._note, file, "torch.save")
            return original(value, file, *arguments, **options)

        return save

    def _note(self, file: Any, function: str) -> None:
        if not isinstance(file, (str, os.PathLike)):
            return
        path = os.path.realpath(os.fspath(file))
        if not isinstance(path, str) or path.startswith(("/dev/", "/proc/", "/sys/", self.core.folder)):
            return
        if path not in self._seen and len(self._seen) < MOST_PATHS:
            self._seen[path] = 1
            self.core.record("write", path=path, function=function, site=self.core.site(function, 5))
