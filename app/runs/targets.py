"""Registered targets: listed in a separate process, kept until their files or the setting change."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from app.documents import Document
from app.environment import for_children
from app.places import module_argv, module_environment
from app.runs.errors import NotFound, Refused
from app.settings import Settings
from trainer.contract.targets import (
    ENTRY_POINTS,
    VARIABLE,
    Listing,
    MemberReport,
    Origin,
    TargetEntry,
    built_in,
    marked,
    read_specs,
)

log: Any = structlog.get_logger("app.targets")
MODULE: Final = "trainer.targets"
LIST_SECONDS: Final = 60.0
"""A listing that takes longer is ended: importing some target hangs."""
CHECK_SECONDS: Final = 110.0
PATIENCE_SECONDS: Final = 20.0
"""How long a request waits for an active listing."""
PROBLEM_SECONDS: Final = 10.0
"""A listing with problems is made again after this time: a file that was missing may exist by now."""
REPORTS: Final = TypeAdapter(list[MemberReport])


class TargetDocument(Document):
    """A registered target, or a registration that cannot be used."""

    name: str = Field(description="What runs call it; empty if it cannot be imported.")
    spec: str = Field(description="`package.module:Object`")
    origin: str = Field(description="built-in, setting (DDP_AUDIT_TARGETS) or entry point.")
    title: str
    problem: str = Field(description="Why runs cannot use it; empty if they can.")


class TargetList(Document):
    """Every registered target: the operator's own first, then the shipped examples."""

    items: list[TargetDocument]


class MemberDocument(Document):
    """What one member of a target did."""

    member: str
    ok: bool
    text: str


class TargetCheckRequest(BaseModel):
    """Body of `POST /targets/{name}/check`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    ranks: int = Field(2, ge=2, le=64, description="Ranks whose windows are looked at.")


class TargetCheck(Document):
    """Every member of a target called once, in a separate process."""

    name: str
    ok: bool
    members: list[MemberDocument]


@dataclass(slots=True)
class Catalogue:
    """The registered targets of one setting. Thread-safe; imports nothing itself."""

    specs: str
    _entries: tuple[TargetEntry, ...] = ()
    _files: Mapping[str, float] = field(default_factory=dict)
    _listed_at: float = 0.0
    _thread: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def entries(self, patience: float = PATIENCE_SECONDS) -> Sequence[TargetEntry]:
        """Return every target, the operator's first; waits up to `patience` seconds for an active listing."""
        if not self._has_own():
            return built_in()
        thread = self._refresh()
        if thread is not None:
            thread.join(patience)
        own = self._entries
        if not own and thread is not None and thread.is_alive():
            problem = f"still being imported after {patience:g} seconds; try again later"
            own = tuple(
                TargetEntry(name="", spec=spec, origin="setting", problem=problem) for spec in read_specs(self.specs)
            )
        return [*own, *built_in()]

    def names(self, patience: float = PATIENCE_SECONDS) -> list[str]:
        """Return the names that runs can use."""
        return [entry.name for entry in self.entries(patience) if not entry.problem]

    def _has_own(self) -> bool:
        return bool(self.specs) or _installed(tuple((folder, _modified(folder)) for folder in sys.path))

    def _refresh(self) -> threading.Thread | None:
        """Start a listing if the last one is outdated; return the thread of an active one."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return self._thread
            if self._listed_at and not self._outdated():
                return None
            self._thread = threading.Thread(target=self._list, name="targets", daemon=True)
            self._thread.start()
            return self._thread

    def _outdated(self) -> bool:
        broken = any(entry.problem for entry in self._entries)
        if broken and time.monotonic() - self._listed_at > PROBLEM_SECONDS:
            return True
        return any(_modified(path) != at for path, at in self._files.items())

    def _list(self) -> None:
        found = [_listing(self.specs)]
        if found[0].ended and len(read_specs(self.specs)) > 1:
            # One of them ended the process of all: each gets its own.
            found = [_listing(spec) for spec in read_specs(self.specs)]
        entries = {(item.spec, item.origin): item for part in found for item in part.items}
        self._entries = tuple(marked(list(entries.values())))
        self._files = {path: _modified(path) for part in found for path in part.files}
        self._listed_at = time.monotonic()


def _listing(specs: str) -> Listing:
    try:
        return Listing.model_validate_json(run_program(specs, LIST_SECONDS))
    except (OSError, ValueError, ValidationError, subprocess.SubprocessError) as error:
        problem = _why(error, LIST_SECONDS)
        log.warning("targets cannot be listed", action="targets-failed", error=problem)
        named: list[tuple[str, Origin]] = [(spec, "setting") for spec in read_specs(specs)] or [
            (ENTRY_POINTS, "entry point")
        ]
        entries = [TargetEntry(name="", spec=spec, origin=origin, problem=problem) for spec, origin in named]
        return Listing(items=entries, ended=True)


@lru_cache(maxsize=1)
def _installed(_folders: tuple[tuple[str, float], ...]) -> bool:
    """Return whether a distribution registers targets; reads all of them again when a folder of `sys.path` changes."""
    return bool(entry_points(group=ENTRY_POINTS))


@cache
def catalogue_of(specs: str) -> Catalogue:
    """Return the one catalogue of a setting in this process."""
    return Catalogue(specs)


def catalogue(settings: Settings) -> Catalogue:
    """Return the catalogue of these settings."""
    return catalogue_of(settings.targets)


def target_list(settings: Settings) -> TargetList:
    """Return the document of all targets."""
    return TargetList(items=[TargetDocument(**entry.model_dump()) for entry in catalogue(settings).entries()])


def check_target(settings: Settings, name: str, ranks: int) -> TargetCheck:
    """Return what every member of a target does. Raises NotFound, Refused if the process cannot answer."""
    found = [entry for entry in catalogue(settings).entries() if entry.name == name]
    if not found:
        known = ", ".join(catalogue(settings).names())
        raise NotFound("unknown_target", f"no target is called {name!r}; registered: {known}")
    if found[0].problem:
        text = found[0].problem
        return TargetCheck(name=name, ok=False, members=[MemberDocument(member="target", ok=False, text=text)])
    try:
        answer = run_program(settings.targets, CHECK_SECONDS, "--check", name, "--ranks", str(ranks))
        members = [MemberDocument(**report.model_dump()) for report in REPORTS.validate_json(answer)]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise Refused("target_check_failed", f"target {name!r}: {_why(error, CHECK_SECONDS)}") from None
    return TargetCheck(name=name, ok=all(member.ok for member in members), members=members)


def run_program(specs: str, seconds: float, *arguments: str) -> str:
    """Run `python -m trainer.targets` and return what it printed. Raises OSError, SubprocessError, ValueError."""
    environment = {**module_environment(for_children(os.environ)), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment.pop(VARIABLE, None)
    done = subprocess.run(
        module_argv(MODULE, *arguments),
        env=environment | ({VARIABLE: specs} if specs else {}),
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no output")
        raise ValueError(f"the process that imports targets ended with {done.returncode}: {last[:300]}")
    json.loads(done.stdout)
    return done.stdout


def _why(error: Exception, seconds: float) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"importing it took longer than {seconds:g} seconds and was ended"
    return str(error).splitlines()[0]


def _modified(path: str) -> float:
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return 0.0
